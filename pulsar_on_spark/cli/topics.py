"""`pulsarpy topics create`, `list`, `add-partitions` and `delete`.

`looks.py` has the commands for stats, and `operate.py` the commands that need a broker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, is_namespace
from pulsar_on_spark.cli.targets import UrlOption, default_url, open_target
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName

topics_app = typer.Typer(help="Create, list, inspect, enlarge, terminate and delete topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Short (clicks, tenant/namespace/clicks) or full (persistent://...).")]


@topics_app.command()
def create(
    name: Name,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", help="1 to 10,000; leave out for a topic without partitions."),
    ] = None,
    schema: Annotated[Path | None, typer.Option(help="File with an Avro record schema of the values.")] = None,
    schema_type: Annotated[str, typer.Option(help="The encoding of values: JSON or AVRO.")] = "JSON",
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    target = open_target(root, root_option, url)
    target.create_topic(name, partitions, None if schema is None else _schema_text(schema), schema_type)
    full = TopicName.parse(name).full
    if as_json:
        output.print_json({"name": full, "partitions": partitions})
        return
    shape = "without partitions" if partitions is None else f"with {partitions} partitions"
    output.say(f"Created {full} {shape}.")


@topics_app.command("list")
def list_(
    namespace: Annotated[
        str | None,
        typer.Argument(metavar="[NAMESPACE]", help="tenant/namespace; by default, all namespaces.", show_default=False),
    ] = None,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """List the topics of a namespace, or all topics."""
    if namespace is not None and root is None and not _is_namespace_given(namespace, root_option, url):
        namespace, root = None, namespace
    topics = open_target(root, root_option, url).topics(namespace)
    if as_json:
        output.print_json([{"name": name, "partitions": partitions} for name, partitions in topics])
        return
    output.table("Topics", ("name", "partitions"), topics)


@topics_app.command()
def add_partitions(
    name: Name,
    partitions: Annotated[int, typer.Argument(help="The new number of partitions.")],
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a partitioned topic."""
    open_target(root, root_option, url).add_partitions(name, partitions)
    output.done(
        f"{TopicName.parse(name).full} has {partitions} partitions.",
        as_json,
        name=TopicName.parse(name).full,
        partitions=partitions,
    )


@topics_app.command()
def delete(
    name: Name,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Delete its subscriptions too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a topic with its partitions and data."""
    open_target(root, root_option, url).delete_topic(name, force=force)
    output.done(
        f"Deleted {TopicName.parse(name).full}; `pulsarpy maintain` frees its space.",
        as_json,
        name=TopicName.parse(name).full,
    )


def _is_namespace_given(text: str, root_option: str | None, url: str | None) -> bool:
    """Return True if the only argument of `topics list` is a namespace, and not the root's folder.

    It is a namespace if it has the form `tenant/namespace`, another option or the environment names the root or broker,
    and (except with `--url`) no folder has this name.

    Args:
        text: The argument.
        root_option: The option `--root`; None if it is absent.
        url: The option `--url`; None if it is absent.
    """
    if not is_namespace(text):
        return False
    if url is not None:
        return True
    return (root_option is not None or default_url() is not None) and not Path(text).exists()


def _schema_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"Option --schema {file} cannot be read ({error}): give another file.") from error
