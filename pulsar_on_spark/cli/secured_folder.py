"""The folder that `pulsarpy security init` creates, with all files that a secured broker on one host needs."""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulsar_on_spark.model.errors import InvalidArgumentError

ADMIN: Final = "admin"
"""The role of the super user's token."""
TOKEN_DAYS: Final = 365
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class SecuredFolder:
    """The paths of the files in a secured folder.

    Attributes:
        settings: The broker's settings, `broker.toml`.
        client: The super user's `client.conf`, for `pulsarpy` and Pulsar's own commands.
        trust: The certificate of the CA, which clients trust.
        secret: The secret key, which signs tokens.
        token: The token of the super user.
    """

    settings: Path
    client: Path
    trust: Path
    secret: Path
    token: Path


def create_secured_folder(folder: Path, hosts: Sequence[str]) -> SecuredFolder:
    """Create a folder with a CA, the broker's certificate, a secret key, a super user's token, and the settings.

    Args:
        folder: The folder, which must be new, so that no other user can write into it.
        hosts: Names and addresses by which clients reach the broker. The `client.conf` has the first one.

    Returns:
        The paths of the files in the folder.

    Raises:
        InvalidArgumentError: the folder exists, or a host is invalid.
        OSError: the folder cannot be written.
    """
    from pulsar_on_spark.security import issuing, keys
    from pulsar_on_spark.security.certificates import LocalCa
    from pulsar_on_spark.security.files import write_new

    folder = folder.parent.resolve() / folder.name  # the name is not resolved: it may be another user's link
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError as error:
        raise InvalidArgumentError(f"{folder} exists: give the name of a new folder.") from error
    ca = LocalCa.open(folder)
    made = SecuredFolder(
        settings=folder / "broker.toml",
        client=folder / "client.conf",
        trust=ca.files.certificate,
        secret=folder / "secret.key",
        token=folder / "admin.token",
    )
    secret = issuing.new_secret("HS256")
    write_new(made.secret, secret, secret=True)
    server = ca.issue_host(hosts)
    claims = {"sub": ADMIN, "exp": int(time.time()) + TOKEN_DAYS * _DAY_S}
    token = issuing.sign(keys.secret_key(secret, str(made.secret)), claims)
    write_new(made.token, f"{token}\n".encode(), secret=True)
    write_new(made.settings, _settings(made, hosts[0], server.certificate, server.key).encode(), secret=False)
    write_new(made.client, _client(made, hosts[0]).encode(), secret=False)
    return made


def _settings(made: SecuredFolder, host: str, certificate: Path, key: Path) -> str:
    # Other hosts reach the broker only if it listens to them.
    address = "" if _is_loopback(host) else f'bind_address = "0.0.0.0"\nadvertised_address = {_toml(host)}\n'
    return f"""# TLS only
broker_service_port = ""
web_service_port = ""
broker_service_port_tls = 6651
web_service_port_tls = 8443
{address}tls_certificate_file_path = {_toml(certificate)}
tls_key_file_path = {_toml(key)}

# each client proves its role by a token or a certificate
authentication_enabled = true
authentication_providers = "token,tls"
token_secret_key = {_toml(made.secret.as_uri())}
tls_trust_certs_file_path = {_toml(made.trust)}

# each role needs permissions, except for super users
authorization_enabled = true
super_user_roles = {_toml(ADMIN)}
"""


def _toml(text: str | Path) -> str:
    """Return a text as a basic string of TOML, which is a string of JSON with one more escape, for DEL."""
    return json.dumps(str(text), ensure_ascii=False).replace("\x7f", "\\u007f")


def _client(made: SecuredFolder, host: str) -> str:
    return f"""webServiceUrl=https://{host}:8443
brokerServiceUrl=pulsar+ssl://{host}:6651
authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
authParams={made.token.as_uri()}
tlsTrustCertsFilePath={made.trust}
tlsEnableHostnameVerification=true
"""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
