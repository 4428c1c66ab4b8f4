"""Certificates made by the command line, and commands that reach a broker over TLS with them."""

from __future__ import annotations

import io
import json
import stat
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.cli.credentials import read_client_conf
from pulsar_on_spark.security.files import path_of
from pulsar_on_spark.security.providers.basic import Users
from tests.kit.running_broker import RunningBroker

from .test_app import Run, ok, run  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secure") / "certificates"


@pytest.fixture(scope="module")
def broker(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that serves TLS only, and whose certificate expires soon."""
    from typer.testing import CliRunner

    from pulsar_on_spark.cli.app import app

    made = CliRunner().invoke(app, ["security", "certificate", str(folder), "--host", "localhost", "--days", "10"])
    assert made.exit_code == 0, made.output
    settings = {
        "broker_service_port": "",
        "web_service_port": "",
        "broker_service_port_tls": 0,
        "web_service_port_tls": 0,
        "tls_certificate_file_path": folder / "localhost.cert.pem",
        "tls_key_file_path": folder / "localhost.key.pem",
    }
    with RunningBroker(tmp_path_factory.mktemp("broker") / "root", settings) as running:
        yield running


def test_a_certificate_is_issued_for_hosts_or_for_a_role(run: Run, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "new"
    said = json.loads(ok(run("security", "certificate", folder, "--host", "a", "--host", "127.0.0.1", "--json")))
    ca = x509.load_pem_x509_certificate(Path(said["ca"]).read_bytes())
    host = x509.load_pem_x509_certificate(Path(said["certificate"]).read_bytes())
    host.verify_directly_issued_by(ca)
    names = host.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert stat.S_IMODE(Path(said["key"]).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    ok(run("security", "certificate", folder, "--role", "orders"))
    role = x509.load_pem_x509_certificate((folder / "orders.cert.pem").read_bytes())
    role.verify_directly_issued_by(ca)
    assert role.subject.rfc4514_string() == "CN=orders"


@pytest.mark.parametrize(
    "arguments",
    [(), ("--host", "a", "--role", "b"), ("--role", "ca"), ("--role", "../x"), ("--role", ""), ("--host", "a b")],
)
def test_arguments_that_name_no_certificate_are_refused(
    run: Run,  # noqa: F811
    tmp_path: Path,
    arguments: tuple[str, ...],
) -> None:
    done = run("security", "certificate", tmp_path, *arguments)
    assert done.code == 1
    assert done.err.startswith("pulsarpy: ")
    assert not list(tmp_path.glob("[!c]*"))


def test_commands_verify_and_reach_the_broker(run: Run, broker: RunningBroker, folder: Path) -> None:  # noqa: F811
    trust = ("--tls-trust-cert-path", folder / "ca.cert.pem")
    ok(run("topics", "create", "secured", "--url", broker.web_url, *trust))
    assert "secured" in ok(run("topics", "list", "--url", broker.web_url, *trust))
    ok(run("produce", "secured", "--url", broker.url, *trust, "-m", "hello"))
    assert "hello" in ok(run("read", "secured", "--url", broker.web_url, *trust))
    said = ok(run("status", "--url", broker.web_url, *trust))
    assert "TLS certificate expires on" in said


@pytest.mark.parametrize("what", ["topics", "produce"])
def test_an_untrusted_certificate_is_one_sentence_with_the_remedy(
    run: Run,  # noqa: F811
    broker: RunningBroker,
    what: str,
) -> None:
    command = (
        ("topics", "list", "--url", broker.web_url)
        if what == "topics"
        else (
            "produce",
            "secured",
            "--url",
            broker.url,
            "-m",
            "x",
        )
    )
    done = run(*command)
    assert done.code == 1
    assert "is refused (unable to get local issuer certificate)" in done.err
    assert "--tls-trust-cert-path" in done.err
    ok(run(*command, "--tls-allow-insecure"))


@pytest.mark.parametrize("kind", ["web", "binary"])
def test_a_certificate_of_another_host_is_refused_unless_that_is_disabled(
    run: Run,  # noqa: F811
    broker: RunningBroker,
    folder: Path,
    kind: str,
) -> None:
    url = (broker.web_url if kind == "web" else broker.url).replace("localhost", "127.0.0.1")
    command = ("topics", "list") if kind == "web" else ("produce", "secured", "-m", "x")
    trust = ("--url", url, "--tls-trust-cert-path", folder / "ca.cert.pem")
    done = run(*command, *trust)
    assert done.code == 1
    assert "mismatch, certificate is not valid for '127.0.0.1'" in done.err
    ok(run(*command, *trust, "--tls-disable-hostname-verification"))


def test_a_file_of_cas_that_cannot_be_used_is_named(run: Run, broker: RunningBroker, tmp_path: Path) -> None:  # noqa: F811
    done = run("topics", "list", "--url", broker.web_url, "--tls-trust-cert-path", tmp_path / "missing.pem")
    assert done.code == 1
    assert "missing.pem" in done.err


@pytest.mark.parametrize("name", ['a"b\\c', "a\tb\x7f", "\\u0041 \N{GRINNING FACE}'ü"])
def test_init_names_files_in_a_folder_of_any_name(run: Run, tmp_path: Path, name: str) -> None:  # noqa: F811
    files = json.loads(ok(run("security", "init", tmp_path / name, "--json")))
    written = tomllib.loads(Path(files["settings"]).read_text())
    for setting in ("tls_certificate_file_path", "tls_key_file_path", "token_secret_key", "tls_trust_certs_file_path"):
        assert path_of(written[setting]).parent == tmp_path / name
        assert path_of(written[setting]).is_file()


@pytest.mark.parametrize("there", ["an open folder", "an empty folder", "a dangling link"])
def test_init_writes_into_a_folder_of_its_own(run: Run, tmp_path: Path, there: str) -> None:  # noqa: F811
    """A user that can write a folder can replace the keys in it."""
    folder, target = tmp_path / "there", tmp_path / "target"
    if there == "a dangling link":
        folder.symlink_to(target)
    else:
        folder.mkdir()
        folder.chmod(0o777 if there == "an open folder" else 0o700)
    refused = run("security", "init", folder)
    assert refused.code == 1
    assert refused.err.count("\n") == 1
    assert f"{folder} exists: give the name of a new folder." in refused.err
    assert not target.exists()
    assert there == "a dangling link" or not list(folder.iterdir())
    new = tmp_path / "parent" / "new"
    ok(run("security", "init", new))
    assert stat.S_IMODE(new.stat().st_mode) == 0o700


def test_init_creates_files_that_fit_each_other_and_replaces_none(run: Run, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "secure"
    files = json.loads(ok(run("security", "init", folder, "--host", "b.example", "--host", "10.0.0.1", "--json")))
    assert set(files) == {"settings", "client", "ca", "secretKey", "token"}
    private = {each.name for each in folder.iterdir() if stat.S_IMODE(each.stat().st_mode) == 0o600}
    assert private == {"ca.key.pem", "b.example.key.pem", "secret.key", "admin.token"}
    written = tomllib.loads(Path(files["settings"]).read_text())
    assert (written["bind_address"], written["advertised_address"]) == ("0.0.0.0", "b.example")
    assert written.keys() <= BrokerSettings.model_fields.keys()
    assert '"sub": "admin"' in ok(run("tokens", "validate", "-sk", files["secretKey"], "-f", files["token"]))
    conf = read_client_conf(files["client"])
    assert (conf["webServiceUrl"], conf["brokerServiceUrl"]) == (
        "https://b.example:8443",
        "pulsar+ssl://b.example:6651",
    )
    before = {each: each.read_bytes() for each in folder.iterdir()}
    again = run("security", "init", folder)
    assert (again.code, f"{folder} exists" in again.err) == (1, True)
    assert {each: each.read_bytes() for each in folder.iterdir()} == before


def test_passwords_are_added_and_replaced(
    run: Run,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "users"
    for user, password in (("alice", "one"), ("bob", "two"), ("alice", "three ü")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{password}\n"))
        said = ok(run("security", "password", file, user))
        assert password not in said
    users = Users.parse(file.read_bytes(), "it")
    assert list(users.hashes) == ["alice", "bob"]
    assert users.check("alice", "three ü".encode(), b"key")
    assert users.check("bob", b"two", b"key")
    assert not users.check("alice", b"one", b"key")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("user", "password"),
    [("", "x"), ("a:b", "x"), ("#a", "x"), ("a\nb", "x"), ("a" * 1_025, "x"), ("a", ""), ("a", "x" * 73)],
)
def test_users_and_passwords_that_no_htpasswd_file_holds_are_refused(
    run: Run,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: str,
    password: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{password}\n"))
    done = run("security", "password", tmp_path / "users", user)
    assert (done.code, done.err.startswith("pulsarpy: ")) == (1, True)
    assert not (tmp_path / "users").exists()
