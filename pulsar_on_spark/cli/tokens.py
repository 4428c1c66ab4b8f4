"""`pulsarpy tokens`: keys and tokens, with the commands, options and files of `pulsar tokens`."""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.extras import require_security
from pulsar_on_spark.cli.units import duration_s
from pulsar_on_spark.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pulsar_on_spark.security.keys import TokenKey

tokens_app = typer.Typer(help="Keys and tokens (JWT) of clients.", no_args_is_help=True)

_Secret = Annotated[
    str | None, typer.Option("--secret-key", "-sk", help="The secret key: a file, file:///PATH or data:;base64,KEY.")
]
_Private = Annotated[str | None, typer.Option("--private-key", "-pk", help="The private key, in the same forms.")]
_Public = Annotated[str | None, typer.Option("--public-key", "-pk", help="The public key, in the same forms.")]
_Algorithm = Annotated[
    str | None, typer.Option("--signature-algorithm", "-a", help="The algorithm; the key's kind decides by default.")
]
_Token = Annotated[str | None, typer.Argument(help="The token; by default --token-file or standard input has it.")]
_TokenFile = Annotated[Path | None, typer.Option("--token-file", "-f", help="The file of the token.")]
_Input = Annotated[bool, typer.Option("--stdin", "-i", help="Read the token from standard input.")]


@tokens_app.command("create-secret-key")
def create_secret_key(
    file: Annotated[Path | None, typer.Option("--output", "-o", help="The file [standard output].")] = None,
    in_base64: Annotated[bool, typer.Option("--base64", "-b", help="Write it in base64.")] = False,
    algorithm: Annotated[str, typer.Option("--signature-algorithm", "-a", help="HS256, HS384 or HS512.")] = "HS256",
) -> None:
    """Create a secret key, which signs and verifies tokens."""
    require_security()
    from pulsar_on_spark.security.files import write_new
    from pulsar_on_spark.security.issuing import new_secret

    made = new_secret(algorithm)
    content = base64.b64encode(made) if in_base64 else made
    if file is not None:
        write_new(file, content, secret=True)
    elif in_base64:
        output.say(content.decode())
    else:
        sys.stdout.buffer.write(content)


@tokens_app.command("create-key-pair")
def create_key_pair(
    private: Annotated[Path, typer.Option("--output-private-key", help="The file of the private key.")],
    public: Annotated[Path, typer.Option("--output-public-key", help="The file of the public key.")],
    algorithm: Annotated[
        str, typer.Option("--signature-algorithm", "-a", help="RS256 to RS512, PS256 to PS512, ES256 to ES512.")
    ] = "RS256",
) -> None:
    """Create a private key, which signs tokens, and its public key, which verifies them."""
    require_security()
    from pulsar_on_spark.security.files import write_new
    from pulsar_on_spark.security.issuing import new_pair

    made_private, made_public = new_pair(algorithm)
    write_new(private, made_private, secret=True)
    write_new(public, made_public, secret=False)


@tokens_app.command("create")
def create(
    subject: Annotated[str, typer.Option("--subject", "-s", help="The role.")],
    secret_key: _Secret = None,
    private_key: _Private = None,
    expiry: Annotated[
        str | None, typer.Option("--expiry-time", "-e", help="The time for which it is valid, such as 30d or 1h.")
    ] = None,
    algorithm: _Algorithm = None,
    header: Annotated[list[str] | None, typer.Option("--headers", "-h", help="A header, NAME=VALUE.")] = None,
) -> None:
    """Create a token, and print it."""
    require_security()
    from pulsar_on_spark.security.issuing import sign
    from pulsar_on_spark.security.principal import MAX_ROLE_BYTES, is_role

    if not is_role(subject):
        raise InvalidArgumentError(
            f"Option --subject is not a role, which has 1 to {MAX_ROLE_BYTES} bytes of printable text: give another."
        )
    claims: dict[str, object] = {"sub": subject}
    if expiry is not None:
        claims["exp"] = int(time.time() + duration_s(expiry, "Option --expiry-time"))
    headers = dict(_header(text) for text in header or ())
    print(sign(_key(secret_key, private_key, signs=True), claims, algorithm, headers))


@tokens_app.command("show")
def show(token: _Token = None, token_file: _TokenFile = None, stdin: _Input = False) -> None:
    """Print the header and the claims of a token, without checking its signature."""
    for part in _parts(_given(token, token_file, stdin)):
        output.say(json.dumps(part))


@tokens_app.command("validate")
def validate(
    token: _Token = None,
    token_file: _TokenFile = None,
    stdin: _Input = False,
    secret_key: _Secret = None,
    public_key: _Public = None,
) -> None:
    """Check a token as a broker with the given key does, and print the token's claims."""
    require_security()
    from pulsar_on_spark.security.evidence import NotAuthenticatedError
    from pulsar_on_spark.security.providers.token import TokenRules, principal_of, verified_claims

    key = _key(secret_key, public_key, signs=False)
    try:
        claims = verified_claims(_given(token, token_file, stdin).encode(), key)
        principal_of(claims, TokenRules(), time.time())
    except NotAuthenticatedError as error:
        raise InvalidArgumentError(
            f"The token is invalid ({error}): make another by `pulsarpy tokens create`."
        ) from None
    output.say(json.dumps(claims))


def _key(secret: str | None, pair: str | None, *, signs: bool) -> TokenKey:
    from pulsar_on_spark.security import keys
    from pulsar_on_spark.security.files import read_given

    of_pair = "--private-key" if signs else "--public-key"
    if (secret is None) == (pair is None):
        raise InvalidArgumentError(f"The command takes one key: give either --secret-key or {of_pair}.")
    if secret is not None:
        what = "Option --secret-key"
        return keys.secret_key(read_given(secret, what, secret=True), what)
    what = f"Option {of_pair}"
    content = read_given(str(pair), what, secret=signs)
    return keys.private_key(content, what) if signs else keys.public_key(content, what)


def _given(token: str | None, file: Path | None, stdin: bool) -> str:
    if (token is not None) + (file is not None) + stdin > 1:
        raise InvalidArgumentError(
            "The token is given in several ways: give only one of the argument, --token-file and --stdin."
        )
    if token is not None:
        return token
    return (sys.stdin.read() if file is None else file.read_text()).strip()


def _parts(token: str) -> list[dict[str, Any]]:
    """Return the header and the claims of a token without verifying it.

    Raises:
        InvalidArgumentError: the text is not a token.
    """
    try:
        header, claims, _ = token.split(".")
        parts = [json.loads(base64.urlsafe_b64decode(part + "===")) for part in (header, claims)]
    except (ValueError, RecursionError):
        parts = []
    if not parts or not all(isinstance(part, dict) for part in parts):
        raise InvalidArgumentError("The given text is not a token: give one that `pulsarpy tokens create` prints.")
    return parts


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise InvalidArgumentError(f"Header {given!r} is not of the form NAME=VALUE: correct it.")
    return name, value
