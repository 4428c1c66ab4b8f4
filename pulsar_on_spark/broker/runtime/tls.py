"""The broker's TLS: its settings, and its certificate, which is read again after its files were replaced."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from pathlib import Path
from typing import Final

from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.model.errors import InvalidArgumentError, PulsarpyError
from pulsar_on_spark.security.tls import LoadedTls, ServerTls, load_server, stamps_of

log = logging.getLogger(__name__)

_WARN_EVERY_S: Final = 86_400
"""Interval of warnings about a certificate that expires soon."""


def server_tls(settings: BrokerSettings) -> ServerTls | None:
    """Return the files and rules of TLS that a broker's settings choose; None if no port has TLS.

    Raises:
        InvalidArgumentError: settings are missing or contradict each other.
    """
    if settings.broker_service_port_tls is None and settings.web_service_port_tls is None:
        return None
    for name in ("tls_certificate_file_path", "tls_key_file_path"):
        if not getattr(settings, name):
            raise InvalidArgumentError(
                f"A port with TLS needs {name}: set it to a PEM file, or make one for tests by `pulsarpy security "
                "certificate`."
            )
    requires = settings.tls_require_trusted_client_cert_on_connect
    trusted = settings.tls_trust_certs_file_path
    if requires and not trusted:
        raise InvalidArgumentError(
            "Setting tls_require_trusted_client_cert_on_connect needs the CAs of client certificates: set "
            "tls_trust_certs_file_path."
        )
    if requires and settings.tls_allow_insecure_connection:
        raise InvalidArgumentError(
            "Settings tls_require_trusted_client_cert_on_connect and tls_allow_insecure_connection contradict each "
            "other: leave one of them out."
        )
    verifies = bool(trusted) and not settings.tls_allow_insecure_connection
    return ServerTls(
        Path(settings.tls_certificate_file_path),
        Path(settings.tls_key_file_path),
        Path(trusted) if verifies else None,
        requires,
        settings.tls_protocols,
        settings.tls_ciphers,
    )


class BrokerTls:
    """The TLS context of a running broker.

    Args:
        tls: The TLS settings.
        check_s: Interval of checks whether the files were replaced, in seconds.

    Raises:
        InvalidArgumentError: a file cannot be used.
    """

    def __init__(self, tls: ServerTls, check_s: float) -> None:
        self._tls = tls
        self._check_s = check_s
        self._loaded = load_server(tls)
        self._warn_at_s = 0.0
        self._checking: asyncio.Task[None] | None = None
        self._warn()

    @property
    def context(self) -> ssl.SSLContext:
        """The context for new connections; existing connections keep their context."""
        return self._loaded.context

    @property
    def expires_in_s(self) -> float:
        """Time until the certificate expires, in seconds; negative once it has."""
        return self._loaded.expires_s - time.time()

    @property
    def warning(self) -> str | None:
        """The warning that the certificate is not valid now or expires soon, one sentence; else None."""
        return self._loaded.warning(time.time())

    def start(self) -> None:
        """Begin to check periodically if the files were replaced."""
        what = "The TLS files could not be checked and are checked again soon"
        self._checking = asyncio.create_task(every(self._check_s, self.check, what), name="TLS files")

    async def stop(self) -> None:
        """Stop checking the files."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)

    async def check(self) -> None:
        """Read the files again if they were replaced; if they cannot be used, log an error and keep the old context."""
        try:
            self._loaded = await asyncio.to_thread(self._read_if_replaced, self._loaded)
        except (PulsarpyError, OSError) as error:
            log.error("The TLS files were replaced and cannot be used, so the former ones stay in use: %s", error)
        self._warn()

    def _read_if_replaced(self, loaded: LoadedTls) -> LoadedTls:
        if stamps_of(self._tls.files) == loaded.stamps:
            return loaded
        replaced = load_server(self._tls)
        log.info("The TLS files were replaced and are in use for new connections: %s", self._tls.certificate)
        self._warn_at_s = 0.0
        return replaced

    def _warn(self) -> None:
        warning, now_s = self.warning, time.monotonic()
        if warning is not None and now_s >= self._warn_at_s:
            log.warning("%s", warning)
            self._warn_at_s = now_s + _WARN_EVERY_S
