"""TLS, authentication and permissions as the official suites expect them, from the suites' own settings and files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulsar_on_spark.security import issuing, keys

SETTINGS: Final = (
    "brokerServicePortTls",
    "webServicePortTls",
    "tlsCertificateFilePath",
    "tlsKeyFilePath",
    "tlsTrustCertsFilePath",
    "tlsAllowInsecureConnection",
    "anonymousUserRole",
    "authenticationEnabled",
    "authenticationProviders",
    "authorizationEnabled",
    "tokenSecretKey",
    "superUserRoles",
    "basicAuthConf",
)
"""The settings that a suite's `standalone.conf` contributes to the broker under test."""
PEER_SETTINGS: Final = ("brokerClientTlsEnabled", "brokerClientAuthenticationPlugin")
"""The further settings that a real Pulsar needs to reach itself."""
ANONYMOUS: Final = "anonymous"
TOKEN_ROLE: Final = "token-principal"
GRANTS: Final = {"private/auth": TOKEN_ROLE}
"""The role that may produce and consume, by namespace; in all others it is the anonymous one."""


@dataclass(frozen=True, slots=True)
class Security:
    """The security of a suite's broker.

    Attributes:
        settings: Settings by Pulsar's names.
        token: A super user's token.
    """

    settings: Mapping[str, str]
    token: str

    @property
    def own_settings(self) -> dict[str, str]:
        """The settings by the names of `BrokerSettings`."""
        return {snake_case(name): value for name, value in self.settings.items() if name in SETTINGS}

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of a super user."""
        return {"Authorization": f"Bearer {self.token}"}


def snake_case(name: str) -> str:
    """Return a setting's name as `BrokerSettings` spells it.

    >>> snake_case("tlsTrustCertsFilePath")
    'tls_trust_certs_file_path'
    """
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda found: f"_{found[0]}", name).lower()


def parse_conf(content: str) -> dict[str, str]:
    """Parse a `standalone.conf`: the values of the settings that matter here."""
    lines = (line.partition("=") for line in content.splitlines() if not line.lstrip().startswith("#"))
    found = {name.strip(): value.strip() for name, _, value in lines}
    return {name: found[name] for name in (*SETTINGS, *PEER_SETTINGS) if found.get(name)}


def go_security(folder: Path, work: Path) -> Security:
    """Secure a broker as the Go client's suites expect it.

    Args:
        folder: The module's folder `integration-tests`.
        work: The folder for copies of its files, which the broker wants to be private.
    """
    copies = _copies(
        folder,
        work,
        tlsCertificateFilePath="certs/broker-cert.pem",
        tlsKeyFilePath="certs/broker-key.pem",
        tlsTrustCertsFilePath="certs/cacert.pem",
        tokenSecretKey="tokens/secret.key",
        basicAuthConf="conf/.htpasswd",
    )
    client = {name: str(_copy(folder / f"certs/client-{name}.pem", work)) for name in ("cert", "key")}
    settings = parse_conf((folder / "conf/standalone.conf").read_text()) | _given(copies)
    parameters = f"tlsCertFile:{client['cert']},tlsKeyFile:{client['key']}"
    settings |= {
        "brokerClientAuthenticationParameters": parameters,
        "brokerClientTrustCertsFilePath": str(copies["tlsTrustCertsFilePath"]),
    }
    return Security(settings, (folder / "tokens/admin-token").read_text().strip())


def python_security(folder: Path, work: Path) -> Security:
    """Secure a broker as the Python client's suite expects it, and write the token that the suite reads.

    Args:
        folder: The suite's folder `tests`.
        work: The folder for copies of its files, and for a new secret key.
    """
    conf = folder / "test-conf"
    copies = _copies(
        conf,
        work,
        tlsCertificateFilePath="broker-cert.pem",
        tlsKeyFilePath="broker-key.pem",
        tlsTrustCertsFilePath="cacert.pem",
        basicAuthConf=".htpasswd",
    )
    secret = issuing.new_secret("HS256")
    copies["tokenSecretKey"] = _private(work / "secret.key", secret)
    key = keys.secret_key(secret, "the suite's key")
    (folder / ".test-token.txt").write_text(issuing.sign(key, {"sub": TOKEN_ROLE}))
    settings = parse_conf((conf / "standalone-ssl.conf").read_text()) | _given(copies)
    settings |= {
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": "token:" + issuing.sign(key, {"sub": "superUser"}),
    }
    return Security(settings, issuing.sign(key, {"sub": "superUser"}))


def _copies(folder: Path, work: Path, **files: str) -> dict[str, Path]:
    """Copy files of a suite's folder; returns the copies by the settings that name them."""
    return {setting: _copy(folder / file, work) for setting, file in files.items()}


def _given(copies: Mapping[str, Path]) -> dict[str, str]:
    return {name: path.as_uri() if name == "tokenSecretKey" else str(path) for name, path in copies.items()}


def _copy(source: Path, work: Path) -> Path:
    return _private(work / source.name, source.read_bytes())


def _private(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.touch(0o600)
    file.write_bytes(content)
    return file
