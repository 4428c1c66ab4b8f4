"""`pulsarpy security`: files that secure a broker, certificates for development and tests, passwords."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson
from pulsar_on_spark.cli.extras import require_security
from pulsar_on_spark.model.errors import InvalidArgumentError

security_app = typer.Typer(help="Files that secure a broker: certificates, settings, passwords.", no_args_is_help=True)
_MAX_DAYS = 3650


@security_app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for all files.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="A name or address of the broker [localhost]; repeat it for more."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create the files that secure a broker: CA, certificate, key, super user's token, broker.toml, client.conf."""
    require_security()
    from pulsar_on_spark.cli.secured_folder import create_secured_folder

    made = create_secured_folder(folder, host or ["localhost"])
    files = {
        "settings": made.settings,
        "client": made.client,
        "ca": made.trust,
        "secretKey": made.secret,
        "token": made.token,
    }
    if as_json:
        output.print_json({name: str(file) for name, file in files.items()})
        return
    output.say(f"Start the broker  pulsarpy standalone --root ROOT --config {made.settings}")
    output.say(f"Administer it     export PULSAR_CLIENT_CONF={made.client}")
    output.say(f"Clients trust     {made.trust}")


@security_app.command("password")
def password(
    file: Annotated[Path, typer.Argument(help="The htpasswd file of `basic_auth_conf`; created if it is absent.")],
    user: Annotated[str, typer.Argument(help="The user.")],
) -> None:
    """Set a user's password. At a terminal, the command asks for it; otherwise it is read from standard input."""
    require_security()
    from pulsar_on_spark.security.passwords import set_password

    if sys.stdin.isatty():
        given = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        given = sys.stdin.readline().rstrip("\r\n")
    set_password(file, user, given)
    output.say(f"{file}: set the password of {user}.")


@security_app.command("certificate")
def certificate(
    folder: Annotated[Path, typer.Argument(help="The folder of the CA and its certificates.")],
    host: Annotated[
        list[str] | None, typer.Option("--host", help="A name or address of the server; repeat it for more.")
    ] = None,
    role: Annotated[str | None, typer.Option("--role", help="The role of a client, instead of a host.")] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=_MAX_DAYS, help="Days until it expires.")] = 397,
    as_json: AsJson = False,
) -> None:
    """Make a certificate for a server or a client, signed by the folder's CA, which is created if it is missing."""
    if (role is None) == (host is None):
        raise InvalidArgumentError("A certificate is for either a server or a client: give either --host or --role.")
    require_security()
    from pulsar_on_spark.security.certificates import LocalCa

    ca = LocalCa.open(folder)
    files = ca.issue_host(host, days) if role is None and host is not None else ca.issue_role(str(role), days)
    if as_json:
        made = {"ca": ca.files.certificate, "certificate": files.certificate, "key": files.key}
        output.print_json({name: str(file) for name, file in made.items()})
        return
    output.say(f"Certificate  {files.certificate}")
    output.say(f"Key          {files.key}")
    output.say(f"CA           {ca.files.certificate}")
