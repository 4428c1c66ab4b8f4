"""The broker's TLS settings, and files that are replaced while it runs."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.tls import BrokerTls, server_tls
from pulsar_on_spark.broker.runtime.tls_listener import HandshakePace
from pulsar_on_spark.model.errors import InvalidArgumentError
from tests.kit.tls_files import HOSTS, TlsFiles


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


def settings_of(files: TlsFiles, **others: object) -> BrokerSettings:
    return BrokerSettings.model_validate(
        {name: str(value) if isinstance(value, Path) else value for name, value in files.settings(**others).items()}
    )


def loaded(files: TlsFiles, **others: object) -> BrokerTls:
    tls = server_tls(settings_of(files, **others))
    assert tls is not None
    return BrokerTls(tls, check_s=300)


def test_a_broker_without_a_tls_port_has_no_tls() -> None:
    assert server_tls(BrokerSettings(tls_require_trusted_client_cert_on_connect=True)) is None


@pytest.mark.parametrize(
    ("others", "complaint"),
    [
        ({"tls_certificate_file_path": ""}, "A port with TLS needs tls_certificate_file_path"),
        ({"tls_key_file_path": ""}, "A port with TLS needs tls_key_file_path"),
        ({"tls_require_trusted_client_cert_on_connect": True}, "set tls_trust_certs_file_path"),
        (
            {
                "tls_require_trusted_client_cert_on_connect": True,
                "tls_allow_insecure_connection": True,
                "tls_trust_certs_file_path": "ca.pem",
            },
            "contradict each other",
        ),
    ],
)
def test_settings_that_lack_something_are_refused(files: TlsFiles, others: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        server_tls(settings_of(files, **others))


def test_insecure_connections_are_not_asked_for_certificates(files: TlsFiles) -> None:
    verifying = server_tls(settings_of(files, tls_trust_certs_file_path=files.trust))
    insecure = settings_of(files, tls_trust_certs_file_path=files.trust, tls_allow_insecure_connection=True)
    assert verifying is not None
    assert verifying.trust_certs == Path(files.trust)
    assert server_tls(insecure) == server_tls(settings_of(files))


def test_replaced_files_are_used_and_broken_ones_ignored(files: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tls = loaded(files)
    first = tls.context

    async def scene() -> None:
        await tls.check()
        assert tls.context is first
        assert caplog.records == []

        files.ca.issue_host(HOSTS, days=100)
        await tls.check()
        second = tls.context
        assert second is not first
        assert 99 < tls.expires_in_s / 86_400 <= 100
        assert "are in use for new connections" in caplog.text

        files.host.key.write_text("nonsense")
        for _ in range(2):
            caplog.clear()
            await tls.check()
            (error,) = caplog.records
            assert error.levelno == logging.ERROR
            assert "the former ones stay in use" in error.getMessage()
        files.host.key.unlink()
        caplog.clear()
        await tls.check()
        assert tls.context is second
        assert "No such file" in caplog.text

        files.ca.issue_host(HOSTS)
        await tls.check()
        assert tls.context not in (first, second)

    asyncio.run(scene())


@pytest.mark.parametrize(("days", "warning"), [(13, "expires on"), (-1, "expired on"), (16, None)])
def test_a_certificate_that_expires_soon_warns_once_a_day(
    files: TlsFiles, caplog: pytest.LogCaptureFixture, days: int, warning: str | None
) -> None:
    files.ca.issue_host(HOSTS, days=days)
    tls = loaded(files)
    asyncio.run(tls.check())
    assert len(caplog.records) == (warning is not None)
    assert warning is None or warning in caplog.text
    assert (tls.warning is None) is (warning is None)


def test_handshakes_begin_at_a_pace() -> None:
    pace = HandshakePace(per_s=10, burst=5)
    assert [pace.begin(100.0) for _ in range(7)] == pytest.approx([0, 0, 0, 0, 0, 0.1, 0.2])
    assert pace.begin(100.7) == 0
    assert pace.begin(1000.0) == 0
    total_s, now_s = 0.0, 2000.0
    for _ in range(1000):
        wait_s = pace.begin(now_s)
        now_s += wait_s
        total_s += wait_s
    assert total_s == pytest.approx(99.5, abs=0.2)
