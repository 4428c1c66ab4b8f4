"""`pulsarpy schemas`: list and register schemas of topics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, Topic
from pulsar_on_spark.cli.targets import UrlOption, open_target
from pulsar_on_spark.model.errors import InvalidArgumentError

schemas_app = typer.Typer(help="List and register schemas of topics.", no_args_is_help=True)


@schemas_app.command("list")
def list_(
    topic: Topic,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """List all versions of a topic's schema."""
    versions = open_target(root, root_option, url).schemas(topic)
    if as_json:
        output.print_json(versions)
    else:
        rows = ([version["version"], version["type"], version["data"]] for version in versions)
        output.table(f"Schemas of {topic}", ("version", "type", "schema"), rows)


@schemas_app.command("register")
def register(
    topic: Topic,
    file: Annotated[Path, typer.Argument(help="The schema's text, such as an Avro record in JSON.")],
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    schema_type: Annotated[str, typer.Option("--type", help="JSON, AVRO, or another of Pulsar's types.")] = "JSON",
    as_json: AsJson = False,
) -> None:
    """Register a schema for a topic, unless the topic's compatibility rules refuse the schema."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"Schema file {file} cannot be read ({error}): give another file.") from error
    version = open_target(root, root_option, url).add_schema(topic, schema_type, text)
    output.done(f"Schema version {version} of {topic}.", as_json, topic=topic, version=version)
