"""TLS contexts from PEM files: for a server, whose files may be replaced while it runs, and for its clients."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pulsar_on_spark.model.errors import InvalidArgumentError, sentence_of
from pulsar_on_spark.security.files import require_private

WARN_BEFORE_EXPIRY_S: Final = 14 * 86_400
"""Time before a certificate's expiry at which warnings begin."""
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The TLS settings of a server.

    Attributes:
        certificate: PEM file of the server's certificate, followed by certificates of intermediate CAs.
        key: PEM file of the server's private key.
        trust_certs: PEM file of the CAs that issue client certificates; None if no client is asked for one.
        require_client_certificate: True if clients without a certificate are refused.
        protocols: Versions of TLS, `TLSv1.2` and `TLSv1.3`.
        ciphers: Ciphers of TLS 1.2 by OpenSSL's names; empty for OpenSSL's own choice.
    """

    certificate: Path
    key: Path
    trust_certs: Path | None = None
    require_client_certificate: bool = False
    protocols: tuple[str, ...] = tuple(_VERSIONS)
    ciphers: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files from which the TLS context is made: certificate, key, and the CAs if there are any."""
        return tuple(file for file in (self.certificate, self.key, self.trust_certs) if file is not None)


FileStamp = tuple[int, int, int] | None
"""A file's time of modification, inode and size, which change when it is replaced; None if it cannot be read."""


@dataclass(frozen=True, slots=True)
class LoadedTls:
    """A server's context, and the state of its files when they were read.

    Attributes:
        context: The context for new connections.
        not_before_s: Start of the certificate's validity, in seconds since 1970.
        expires_s: End of the certificate's validity, in seconds since 1970.
        stamps: The files' states when they were read, in the order of `ServerTls.files`.
    """

    context: ssl.SSLContext
    not_before_s: float
    expires_s: float
    stamps: tuple[FileStamp, ...] = field(repr=False)

    def warning(self, now_s: float) -> str | None:
        """Return a warning, one sentence, if the certificate is not valid now or expires soon; else None.

        Args:
            now_s: The current time, in seconds since 1970.
        """
        if now_s < self.not_before_s:
            return f"The broker's TLS certificate is not valid before {_date(self.not_before_s)}: check the clock."
        if now_s >= self.expires_s:
            return f"The broker's TLS certificate expired on {_date(self.expires_s)}, so clients refuse it: replace it."
        if now_s >= self.expires_s - WARN_BEFORE_EXPIRY_S:
            return f"The broker's TLS certificate expires on {_date(self.expires_s)}: replace it before then."
        return None


def load_server(tls: ServerTls) -> LoadedTls:
    """Return the TLS context of a server, made from its files.

    Raises:
        InvalidArgumentError: a file or a value cannot be used; the error names it and the remedy.
    """
    # Stamps are taken first, so that a file which is replaced during the read is read again at the next check.
    stamps = stamps_of(tls.files)
    for file in tls.files:
        _require_readable(file)
    require_private(tls.key, "the private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _set_versions(context, tls.protocols)
    if tls.ciphers:
        _set_ciphers(context, tls.ciphers)
    _load_key(context, tls.certificate, tls.key)
    if tls.trust_certs is not None:
        load_trusted(context, tls.trust_certs)
        context.verify_mode = ssl.CERT_REQUIRED if tls.require_client_certificate else ssl.CERT_OPTIONAL
    not_before_s, expires_s = _validity(tls.certificate)
    return LoadedTls(context, not_before_s, expires_s, stamps)


def client_context(trust_certs: Path | None, *, allow_insecure: bool, verify_hostname: bool) -> ssl.SSLContext:
    """Create the TLS context of a client.

    Args:
        trust_certs: PEM file of the CAs that the client trusts; None for the system's CAs.
        allow_insecure: True to accept every certificate.
        verify_hostname: False to accept a trusted certificate of another host.

    Raises:
        InvalidArgumentError: the file cannot be used.
    """
    # `create_default_context` is not used: from Python 3.13 on it refuses CAs that Pulsar's other clients accept.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = verify_hostname and not allow_insecure
    if allow_insecure:
        context.verify_mode = ssl.CERT_NONE
    elif trust_certs is None:
        context.load_default_certs()
    else:
        _require_readable(trust_certs)
        load_trusted(context, trust_certs)
    return context


def load_trusted(context: ssl.SSLContext, file: Path) -> None:
    """Let a context trust the CAs in a PEM file.

    Raises:
        InvalidArgumentError: there is no certificate in the file.
    """
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise InvalidArgumentError(f"The file {file} contains no PEM certificate of a CA: give another.") from error


def stamps_of(files: Sequence[Path]) -> tuple[FileStamp, ...]:
    """Return the current state of files, to be compared with `LoadedTls.stamps`."""
    return tuple(map(_stamp, files))


def _stamp(file: Path) -> FileStamp:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _require_readable(file: Path) -> None:
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise InvalidArgumentError(f"The TLS file cannot be read: {sentence_of(error)}") from error


def _set_versions(context: ssl.SSLContext, protocols: Sequence[str]) -> None:
    for name in protocols:
        if name not in _VERSIONS:
            raise InvalidArgumentError(
                f"Setting tls_protocols has {name!r}: only TLSv1.2 and TLSv1.3 are safe, give one of them or both."
            )
    if not protocols:
        raise InvalidArgumentError("Setting tls_protocols is empty: give TLSv1.2, TLSv1.3 or both.")
    versions = [_VERSIONS[name] for name in protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_ciphers(context: ssl.SSLContext, ciphers: Sequence[str]) -> None:
    for name in ciphers:  # one by one, because OpenSSL ignores unknown names in a list
        try:
            context.set_ciphers(name)
        except ssl.SSLError as error:
            raise InvalidArgumentError(
                f"Setting tls_ciphers has {name!r}, which OpenSSL does not know as a cipher of TLS 1.2: give names as "
                "`openssl ciphers -tls1_2` lists them; those of TLS 1.3 cannot be chosen."
            ) from error
    context.set_ciphers(":".join(ciphers))


def _load_key(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def refuse_password() -> str:
        raise InvalidArgumentError(
            f"The private key {key} has a password: write it without one by `openssl pkey -in {key} -out NEW_FILE`."
        )

    try:
        context.load_cert_chain(certificate, key, password=refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidArgumentError(
                f"The private key {key} does not fit the certificate {certificate}: give the key that belongs to it."
            ) from error
        raise InvalidArgumentError(
            f"The certificate {certificate} or the private key {key} cannot be used ({error.reason or error}): both "
            "must be PEM files."
        ) from error


def _validity(certificate: Path) -> tuple[float, float]:
    """Return the start and end of a certificate's validity, in seconds since 1970."""
    from cryptography import x509

    try:
        first = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    except ValueError as error:
        raise InvalidArgumentError(
            f"The certificate {certificate} cannot be read ({error}): give another PEM file."
        ) from error
    return first.not_valid_before_utc.timestamp(), first.not_valid_after_utc.timestamp()


def _date(time_s: float) -> str:
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M} UTC"
