"""`pulsarpy security`: certificates for development and tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson
from pulsar_on_spark.cli.extras import missing
from pulsar_on_spark.model.errors import InvalidArgumentError

security_app = typer.Typer(help="Certificates for development and tests.", no_args_is_help=True)
_MAX_DAYS = 3650


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
    """Make a certificate of a server or a client, signed by a CA in a folder; make the CA first if it is missing."""
    if (role is None) == (host is None):
        raise InvalidArgumentError("A certificate is of a server or a client: give either --host or --role.")
    try:
        from pulsar_on_spark.security.certificates import LocalCa
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("cryptography"):
            raise
        raise InvalidArgumentError(missing("cryptography", "This command", "security")) from error
    ca = LocalCa.open(folder)
    files = ca.issue_host(host, days) if role is None and host is not None else ca.issue_role(str(role), days)
    if as_json:
        made = {"ca": ca.files.certificate, "certificate": files.certificate, "key": files.key}
        output.print_json({name: str(file) for name, file in made.items()})
        return
    output.say(f"Certificate  {files.certificate}")
    output.say(f"Key          {files.key}")
    output.say(f"CA           {ca.files.certificate}")
