"""The credentials of commands that connect to a broker: `--auth-plugin` and `--auth-params`, as in `pulsar-admin`.

Without these options, `authPlugin` and `authParams` of Pulsar's `client.conf` are used, if the environment variable
`PULSAR_CLIENT_CONF` names such a file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pulsar_on_spark.model.errors import InvalidArgumentError, sentence_of

if TYPE_CHECKING:
    import ssl

    import pulsar

CLIENT_CONF_VARIABLE: Final = "PULSAR_CLIENT_CONF"
_PLUGINS: Final = {prefix + name: name for name in ("token", "basic", "tls") for prefix in ("", "authentication")}
_NEEDED: Final = {"token": ("token",), "basic": ("userId", "password"), "tls": ("tlsCertFile", "tlsKeyFile")}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a command.

    Attributes:
        method: `token`, `basic` or `tls`; "" for no credentials.
        params: The parameters of the method: `token`; `userId` and `password`; `tlsCertFile` and `tlsKeyFile`.
    """

    method: str = ""
    params: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, plugin: str, params: str) -> Credentials:
        """Return the credentials in the options `--auth-plugin` and `--auth-params`.

        Args:
            plugin: `token`, `basic` or `tls`, or the class of Pulsar's Java client; "" for no credentials.
            params: `name:value` pairs separated by commas, or JSON; for tokens also the token, `token:TOKEN` or
                `file:///PATH`.

        Raises:
            InvalidArgumentError: the plugin is not supported, a parameter is missing, or a file cannot be read.
        """
        if not plugin:
            return cls()
        method = _PLUGINS.get(plugin.rpartition(".")[2].lower())
        if method is None:  # the value is not shown, because it may be a token that was given to the wrong option
            raise InvalidArgumentError(
                "Option --auth-plugin names a method that is not supported: give token, basic or tls."
            )
        parsed = _token_params(params) if method == "token" else _params(params)
        for name in _NEEDED[method]:
            if not parsed.get(name):
                raise InvalidArgumentError(f"Option --auth-params has no {name}, which {method} needs: add it.")
        return cls(method, parsed)

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers with the credentials; empty for `tls` and without credentials."""
        if self.method == "token":
            return {"Authorization": f"Bearer {self.params['token']}"}
        if self.method == "basic":
            both = f"{self.params['userId']}:{self.params['password']}"
            return {"Authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}
        return {}

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Load the client certificate into a TLS context, if the method is `tls`.

        Raises:
            InvalidArgumentError: the files of certificate and key cannot be used.
        """
        if self.method != "tls":
            return
        try:
            context.load_cert_chain(self.params["tlsCertFile"], self.params["tlsKeyFile"])
        except OSError as error:  # also ssl.SSLError
            raise InvalidArgumentError(
                f"The client certificate {self.params['tlsCertFile']} or its key cannot be used ({error}): give other "
                "files."
            ) from error

    def of_client(self) -> pulsar.Authentication | None:
        """Return the credentials in the form of Pulsar's Python client; None without credentials."""
        import pulsar

        if self.method == "token":
            return pulsar.AuthenticationToken(self.params["token"])
        if self.method == "basic":
            return pulsar.AuthenticationBasic(self.params["userId"], self.params["password"])
        if self.method == "tls":
            return pulsar.AuthenticationTLS(self.params["tlsCertFile"], self.params["tlsKeyFile"])
        return None


def read_client_conf(file: str) -> dict[str, str]:
    """Return the values of the lines `name=value` in a `client.conf`, by name.

    Raises:
        InvalidArgumentError: the file cannot be read.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            f"The file {file}, which {CLIENT_CONF_VARIABLE} names, cannot be read ({error}): correct the variable."
        ) from error
    pairs = (line.partition("=") for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs if value.strip()}


def _token_params(params: str) -> dict[str, str]:
    if params.startswith("{"):
        return _params(params)
    if not params.startswith("file:"):
        return {"token": params.removeprefix("token:")}
    file = Path(unquote(urlsplit(params).path))
    try:
        return {"token": file.read_text(encoding="ascii").strip()}
    except OSError as error:
        raise InvalidArgumentError(f"The token in --auth-params cannot be read: {sentence_of(error)}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"The file {file} in --auth-params contains no token: give another file.") from error


def _params(params: str) -> dict[str, str]:
    if not params.startswith("{"):
        pairs = (pair.partition(":") for pair in params.split(",") if pair)
        return {name.strip(): value for name, _, value in pairs}
    try:
        given = json.loads(params)
    except ValueError as error:
        raise InvalidArgumentError(
            "Option --auth-params begins like JSON, but is not valid JSON: correct it."
        ) from error
    return {str(name): str(value) for name, value in given.items()}
