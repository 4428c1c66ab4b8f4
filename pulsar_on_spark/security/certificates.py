"""Certificates for development and tests, all issued by one CA in a folder: EC keys on P-256, valid for 397 days.

ca.cert.pem, ca.key.pem            the CA, created with the first certificate
NAME.cert.pem, NAME.key.pem        the certificate and key of a host or a role
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.files import replace_file

VALID_DAYS: Final = 397
"""Default validity of a certificate, the longest that browsers accept."""
_CA_DAYS: Final = 3650
_SKEW: Final = timedelta(minutes=5)
"""Time by which a certificate's validity begins before its creation, for clients whose clocks are behind."""
_CA: Final = "ca"
_NAME: Final = re.compile(r"[A-Za-z0-9*][A-Za-z0-9*._@:-]{0,63}")


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The PEM files of a certificate and its private key.

    Attributes:
        certificate: The file of the certificate.
        key: The file of the private key.
    """

    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path, name: str) -> CertificateFiles:
        """Return the paths of the files of a host or role in a folder, which may not exist yet."""
        return cls(folder / f"{name}.cert.pem", folder / f"{name}.key.pem")


@dataclass(frozen=True, slots=True)
class LocalCa:
    """A certificate authority for development and tests.

    Attributes:
        folder: The folder of all files.
        files: The CA's own files.
    """

    folder: Path
    files: CertificateFiles
    _certificate: x509.Certificate
    _key: ec.EllipticCurvePrivateKey

    @classmethod
    def open(cls, folder: Path) -> LocalCa:
        """Return the CA in a folder; the folder and the CA are created if they are missing.

        Raises:
            InvalidArgumentError: the CA's files cannot be used.
            OSError: the folder cannot be read or written.
        """
        files = CertificateFiles.of(folder, _CA)
        if not files.certificate.exists() and not files.key.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _create_ca(files)
        try:
            certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
            key = serialization.load_pem_private_key(files.key.read_bytes(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InvalidArgumentError(f"The CA in {folder} cannot be used ({error}): give another folder.") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidArgumentError(f"The key of the CA in {folder} is not an EC key: give another folder.")
        return cls(folder, files, certificate, key)

    def issue_host(self, hosts: Sequence[str], days: int = VALID_DAYS) -> CertificateFiles:
        """Issue the certificate of a server, replace the former one, and return the files.

        Args:
            hosts: The server's host names and addresses; the first one names the files.
            days: Days for which the certificate is valid; a negative number makes an expired certificate.

        Raises:
            InvalidArgumentError: a host is not a name or address.
        """
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        return self._issue(hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, names, days)

    def issue_role(self, role: str, days: int = VALID_DAYS) -> CertificateFiles:
        """Issue the certificate of a client, replace the former one, and return the files.

        Args:
            role: The role, which becomes the certificate's common name and names the files.
            days: Days for which the certificate is valid; a negative number makes an expired certificate.

        Raises:
            InvalidArgumentError: the role cannot be a file's name.
        """
        return self._issue(role, ExtendedKeyUsageOID.CLIENT_AUTH, None, days)

    def _issue(
        self, name: str, usage: x509.ObjectIdentifier, alternatives: x509.SubjectAlternativeName | None, days: int
    ) -> CertificateFiles:
        if name == _CA or _NAME.fullmatch(name) is None:
            raise InvalidArgumentError(
                f"A certificate cannot be named {name!r}: use up to 64 letters, digits and characters of '-._@:', but "
                f"not {_CA!r}."
            )
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(name), self._certificate.subject, key, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        files = CertificateFiles.of(self.folder, name)
        _write(files, builder.sign(self._key, hashes.SHA256()), key)
        return files


def _create_ca(files: CertificateFiles) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("pulsar_on_spark test CA")
    builder = _builder(subject, subject, key, _CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = builder.add_extension(usage, critical=True)
    _write(files, builder.sign(key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    expires = now + timedelta(days=days)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, expires - _SKEW) - _SKEW)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if _NAME.fullmatch(host) is None:
            raise InvalidArgumentError(f"Host {host!r} is not a host name or address: give another.") from None
        return x509.DNSName(host)


def _write(files: CertificateFiles, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Replace both files. A broker that reads them in between notices that they do not match, and reads them again."""
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    replace_file(files.key, secret, secret=True)
    replace_file(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), secret=False)
