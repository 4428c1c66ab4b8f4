"""Client certificates: a verified certificate's common name is the role (Pulsar's AuthenticationProviderTls)."""

from __future__ import annotations

import ssl
from typing import Final

from pulsar_on_spark.security.evidence import Certificate, Evidence, Failure, NotAuthenticatedError
from pulsar_on_spark.security.principal import MAX_ROLE_BYTES, Principal, is_role

_COMMON_NAME: Final = "commonName"


def principal_of(certificate: Certificate | None) -> Principal:
    """Return the identity of the client with a verified certificate (None without one); the common name is the role.

    Raises:
        NotAuthenticatedError: there is no certificate, or it does not have exactly one common name that is a role.
    """
    if not certificate:
        raise NotAuthenticatedError(Failure.MISSING, "there is no client certificate that a trusted CA has signed")
    names = [value for part in certificate.get("subject", ()) for kind, value in part if kind == _COMMON_NAME]
    if len(names) != 1 or not is_role(names[0]):
        reason = (
            f"the client certificate has {len(names)} common names, and needs 1 of at most {MAX_ROLE_BYTES} bytes that "
            "can be shown"
        )
        raise NotAuthenticatedError(Failure.ROLE, reason)
    expires = certificate.get("notAfter")
    return Principal(names[0], expires_at_s=None if expires is None else float(ssl.cert_time_to_seconds(expires)))


class CertificateProvider:
    """Authentication by client certificates."""

    name = "AuthenticationProviderTls"
    method = "tls"

    async def authenticate(self, evidence: Evidence) -> Principal:
        """Return the identity of the client with the connection's certificate (errors as `principal_of`)."""
        return principal_of(evidence.certificate)
