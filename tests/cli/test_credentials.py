"""Commands that authenticate: options, `client.conf`, over HTTP and Pulsar's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from pulsar_on_spark.security import keys
from pulsar_on_spark.security.issuing import sign
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles

from .test_app import Run, ok, run  # noqa: F401  (a fixture)

SECRET = bytes(range(32))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def broker(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("broker")
    for name, content in (
        ("key", SECRET),
        ("users", b"alice:" + bcrypt.hashpw(b"secret", bcrypt.gensalt(4))),
        ("token", sign(keys.secret_key(SECRET, "it"), {"sub": "orders"}).encode() + b"\n"),
    ):
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    settings = files.settings(
        authentication_enabled="true",
        authentication_providers="token,basic,tls",
        token_secret_key=folder / "key",
        basic_auth_conf=folder / "users",
        tls_trust_certs_file_path=files.trust,
    )
    with RunningBroker(folder / "root", settings) as running:
        yield running


def test_commands_authenticate(run: Run, broker: RunningBroker, files: TlsFiles) -> None:  # noqa: F811
    token = f"file://{broker.root.parent / 'token'}"
    role = files.ca.issue_role("orders")
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    for url, *given in (
        (broker.web_url, "--auth-plugin", "token", "--auth-params", token),
        (broker.web_url, "--auth-plugin", plugin, "--auth-params", token),
        (broker.web_url, "--auth-plugin", "basic", "--auth-params", "userId:alice,password:secret"),
        (broker.web_url, "--auth-plugin", "basic", "--auth-params", '{"userId": "alice", "password": "secret"}'),
        (
            *(broker.web_tls_url, "--tls-trust-cert-path", files.trust, "--auth-plugin", "tls", "--auth-params"),
            f"tlsCertFile:{role.certificate},tlsKeyFile:{role.key}",
        ),
    ):
        assert "public" in ok(run("tenants", "list", "--url", url, *given))
    for given in ((), ("--auth-plugin", "basic", "--auth-params", "userId:alice,password:guess")):
        refused = run("tenants", "list", "--url", broker.web_url, *given)
        assert (refused.code, "Authentication required" in refused.err) == (1, True)


def test_messages_and_client_conf(
    run: Run,  # noqa: F811
    broker: RunningBroker,
    files: TlsFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf = tmp_path / "client.conf"
    conf.write_text(
        "# as of Pulsar\nauthPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken\n"
        f"authParams=file://{broker.root.parent / 'token'}\ntlsTrustCertsFilePath={files.trust}\n"
    )
    monkeypatch.setenv("PULSAR_CLIENT_CONF", str(conf))
    ok(run("produce", "t", "-m", "hello", "--url", broker.tls_url))
    assert "public" in ok(run("tenants", "list", "--url", broker.web_tls_url))
    with conf.open("a") as more:
        more.write(f"webServiceUrl={broker.web_tls_url}\nbrokerServiceUrl={broker.tls_url}\n")
    monkeypatch.delenv("PULSARPY_URL", raising=False)
    assert "public" in ok(run("tenants", "list"))
    ok(run("produce", "t", "-m", "hello"))
    monkeypatch.setenv("PULSAR_CLIENT_CONF", str(tmp_path / "missing"))
    assert "cannot be read" in run("tenants", "list", "--url", broker.web_url).err


@pytest.mark.parametrize(
    ("said", "plugin", "params"),
    [
        ("not supported", "kerberos", ""),
        ("has no token", "token", ""),
        ("has no password", "basic", "userId:alice"),
        ("not valid JSON", "basic", "{"),
        ("cannot be read", "token", "file:///nowhere/token"),
        ("cannot be used", "tls", "tlsCertFile:/nowhere/a,tlsKeyFile:/nowhere/b"),
    ],
)
def test_invalid_credentials_are_named(run: Run, said: str, plugin: str, params: str) -> None:  # noqa: F811
    refused = run("tenants", "list", "--url", "https://localhost:1", "--auth-plugin", plugin, "--auth-params", params)
    assert (refused.code, said in refused.err) == (1, True)
