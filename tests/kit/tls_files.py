"""The certificates of a test: a CA, a broker's certificate, and the settings of a broker that has it."""

from __future__ import annotations

import ssl
from pathlib import Path

from pulsar_on_spark.security.certificates import CertificateFiles, LocalCa

HOSTS = ("localhost", "127.0.0.1", "::1")


class TlsFiles:
    """A CA in a folder, and the certificate of `localhost`.

    Attributes:
        ca: The CA.
        host: The certificate of the broker.
    """

    def __init__(self, folder: Path) -> None:
        self.ca = LocalCa.open(folder)
        self.host = self.ca.issue_host(HOSTS)

    @property
    def trust(self) -> str:
        """The CA's file, for clients."""
        return str(self.ca.files.certificate)

    def settings(self, **others: object) -> dict[str, object]:
        """Settings of a broker with this certificate on free ports, and others beside."""
        return {
            "broker_service_port_tls": 0,
            "web_service_port_tls": 0,
            "tls_certificate_file_path": self.host.certificate,
            "tls_key_file_path": self.host.key,
            **others,
        }

    def context(self, client: CertificateFiles | None = None) -> ssl.SSLContext:
        """A client's context that trusts the CA, with a client certificate if one is given."""
        made = ssl.create_default_context(cafile=self.trust)
        if client is not None:
            made.load_cert_chain(client.certificate, client.key)
        return made
