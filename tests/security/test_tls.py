"""Contexts from real files, and files that are refused."""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.certificates import LocalCa
from pulsar_on_spark.security.files import OPEN_SECRETS_VARIABLE
from pulsar_on_spark.security.tls import ServerTls, client_context, load_server, stamps_of

DAY_S = 86_400


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> LocalCa:
    return LocalCa.open(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def tls(ca: LocalCa) -> ServerTls:
    files = ca.issue_host(["localhost"])
    return ServerTls(files.certificate, files.key)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> ssl.SSLObject:
    """Connect both ends in memory, and return the client's end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for each in ends:
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[0]


def test_versions_and_ciphers_are_the_settings(ca: LocalCa, tls: ServerTls) -> None:
    trusting = client_context(ca.files.certificate, allow_insecure=False, verify_hostname=True)
    assert shake_hands(load_server(tls).context, trusting).version() == "TLSv1.3"
    name = "ECDHE-ECDSA-CHACHA20-POLY1305"
    old = replace(tls, protocols=("TLSv1.2",), ciphers=(name, "ECDHE-ECDSA-AES256-GCM-SHA384"))
    found = shake_hands(load_server(old).context, trusting)
    assert found.version() == "TLSv1.2"
    cipher = found.cipher()
    assert cipher is not None
    assert cipher[0] == name
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake_hands(load_server(replace(tls, protocols=("TLSv1.3",))).context, trusting)


@pytest.mark.parametrize(
    ("host", "own_ca", "insecure", "verifies_host", "is_accepted"),
    [
        ("localhost", True, False, True, True),
        ("other", True, False, True, False),
        ("other", True, False, False, True),
        ("localhost", False, False, True, False),
        ("other", False, True, True, True),
    ],
)
def test_clients_verify(
    ca: LocalCa,
    tls: ServerTls,
    tmp_path: Path,
    host: str,
    own_ca: bool,
    insecure: bool,
    verifies_host: bool,
    is_accepted: bool,
) -> None:
    trusted = ca if own_ca else LocalCa.open(tmp_path)
    client = client_context(trusted.files.certificate, allow_insecure=insecure, verify_hostname=verifies_host)
    server = load_server(tls).context
    if is_accepted:
        assert shake_hands(server, client, host).version()
    else:
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(server, client, host)


def test_clients_refuse_an_expired_certificate(ca: LocalCa) -> None:
    files = ca.issue_host(["localhost"], days=-1)
    client = client_context(ca.files.certificate, allow_insecure=False, verify_hostname=True)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(load_server(ServerTls(files.certificate, files.key)).context, client)


def old(context: ssl.SSLContext) -> ssl.SSLContext:
    """Restrict a context to TLS 1.1 and older, with any cipher."""
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    return context


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_neither_end_can_be_talked_down_to_an_old_version(ca: LocalCa, tls: ServerTls) -> None:
    def trusting() -> ssl.SSLContext:
        return client_context(ca.files.certificate, allow_insecure=False, verify_hostname=True)

    def serving() -> ssl.SSLContext:
        return load_server(tls).context

    assert shake_hands(old(serving()), old(trusting())).version() == "TLSv1.1", "this OpenSSL can"
    for server, client in ((serving(), old(trusting())), (old(serving()), trusting())):
        with pytest.raises(ssl.SSLError, match="PROTOCOL"):
            shake_hands(server, client)


def test_client_certificates_are_asked_for_only_with_their_cas(ca: LocalCa, tls: ServerTls) -> None:
    assert load_server(tls).context.verify_mode is ssl.CERT_NONE
    trusting = replace(tls, trust_certs=ca.files.certificate)
    assert load_server(trusting).context.verify_mode is ssl.CERT_OPTIONAL
    assert load_server(replace(trusting, require_client_certificate=True)).context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("given", ["TLSv1.1", "TLSv1", "SSLv3", "tls"])
def test_old_versions_are_refused(tls: ServerTls, given: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"tls_protocols has '{given}': only TLSv1.2 and TLSv1.3"):
        load_server(replace(tls, protocols=("TLSv1.2", given)))


def test_no_version_is_refused(tls: ServerTls) -> None:
    with pytest.raises(InvalidArgumentError, match="tls_protocols is empty"):
        load_server(replace(tls, protocols=()))


@pytest.mark.parametrize("given", ["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384", "nonsense"])
def test_unknown_ciphers_are_refused(tls: ServerTls, given: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"tls_ciphers has '{given}', which OpenSSL does not know"):
        load_server(replace(tls, ciphers=("ECDHE-ECDSA-AES256-GCM-SHA384", given)))


@pytest.mark.parametrize("name", ["certificate", "key", "trust_certs"])
def test_files_that_cannot_be_used_are_refused(ca: LocalCa, tls: ServerTls, tmp_path: Path, name: str) -> None:
    tls = replace(tls, trust_certs=ca.files.certificate)
    missing = tmp_path / "missing.pem"
    with pytest.raises(InvalidArgumentError, match=r"missing\.pem cannot be used \(No such file"):
        load_server(replace(tls, **{name: missing}))  # type: ignore[arg-type]
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
    broken.chmod(0o600)
    with pytest.raises(InvalidArgumentError, match=r"broken\.pem") as refused:
        load_server(replace(tls, **{name: broken}))  # type: ignore[arg-type]
    assert str(refused.value).count(". ") == 0


def test_a_key_of_another_certificate_is_refused(ca: LocalCa, tls: ServerTls) -> None:
    with pytest.raises(InvalidArgumentError, match="does not fit the certificate"):
        load_server(replace(tls, key=ca.issue_host(["other"]).key))


def test_a_key_with_a_password_is_refused_and_not_asked_for(tls: ServerTls, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(tls.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    locked.chmod(0o600)
    with pytest.raises(InvalidArgumentError, match="has a password: write it without one"):
        load_server(replace(tls, key=locked))


def test_a_key_in_pkcs1_form_is_accepted(ca: LocalCa, tls: ServerTls) -> None:
    key = serialization.load_pem_private_key(tls.key.read_bytes(), None)
    tls.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    assert load_server(tls).context


def test_a_key_that_others_can_read_is_refused_unless_allowed(
    tls: ServerTls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tls.key.chmod(0o640)
    load_server(tls)
    tls.key.chmod(0o644)
    with pytest.raises(InvalidArgumentError, match=r"Every user of this host can read .* `chmod o= "):
        load_server(tls)
    monkeypatch.setenv(OPEN_SECRETS_VARIABLE, "1")
    load_server(tls)
    assert "can read the private key" in caplog.text


@pytest.mark.parametrize(
    ("after_days", "warning"),
    [(-1, "is not valid before"), (0, None), (15, None), (17, "expires on"), (31, "expired on")],
)
def test_a_certificate_that_is_not_valid_warns(ca: LocalCa, after_days: int, warning: str | None) -> None:
    files = ca.issue_host(["month"], days=30)
    found = load_server(ServerTls(files.certificate, files.key)).warning(time.time() + after_days * DAY_S)
    assert (found is None) is (warning is None)
    assert warning is None or warning in str(found)


def test_a_replaced_file_is_recognised_by_its_stamp(tls: ServerTls) -> None:
    loaded = load_server(tls)
    assert stamps_of(tls.files) == loaded.stamps
    before = tls.certificate.stat()
    content = tls.certificate.read_bytes()
    written = tls.certificate.with_name("new")
    written.write_bytes(content)
    os.utime(written, ns=(before.st_atime_ns, before.st_mtime_ns))
    written.replace(tls.certificate)
    assert stamps_of(tls.files) != loaded.stamps
    tls.certificate.unlink()
    assert stamps_of(tls.files)[0] is None
