"""`pulsarpy history`: build, delete and show the history tables of a root's topics."""

from __future__ import annotations

from typing import Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, Topic, open_root
from pulsar_on_spark.model.names import TopicName

history_app = typer.Typer(help="Histories of topics: Delta tables for SQL.", no_args_is_help=True)


@history_app.command()
def build(
    topic: Topic,
    root: RootArgument = None,
    root_option: RootOption = None,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Leave out lost and unreadable messages for good, with a log line.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Append a topic's sealed messages to its history table, each once. A broker may be running on the root."""
    done = open_root(root, root_option).build_history(topic, fail_on_data_loss=not skip_lost)
    if as_json:
        output.print_json(done)
        return
    output.table(
        "Built",
        ("topic", "up to", "messages", "size"),
        ((built.part.name, str(built.to), built.rows, output.size(built.bytes)) for built in done),
    )


@history_app.command()
def delete(topic: Topic, root: RootArgument = None, root_option: RootOption = None, as_json: AsJson = False) -> None:
    """Delete a topic's history table, even rows that the topic itself no longer has. A build makes a new table."""
    open_root(root, root_option).delete_history(topic)
    name = TopicName.parse(topic).full
    output.done(f"Deleted the history of {name}.", as_json, name=name)


@history_app.command()
def status(root: RootArgument = None, root_option: RootOption = None, as_json: AsJson = False) -> None:
    """Show the histories of topics, and the numbers of sealed messages that are not built yet."""
    from pulsar_on_spark.history_table.status import statuses

    found = statuses(open_root(root, root_option).store.view(durable=True))
    if as_json:
        output.print_json(found)
        return
    output.table(
        "Histories",
        ("topic", "built by policy", "up to", "messages", "size", "storage path", "sealed, not built"),
        (
            (each.name, each.is_enabled, each.to, each.rows, output.size(each.bytes), each.path_id, each.waiting_rows)
            for each in found
        ),
    )


@history_app.command()
def sql(
    namespace: Annotated[str, typer.Argument(help="The namespace, tenant/namespace.")],
    root: RootArgument = None,
    root_option: RootOption = None,
    database: Annotated[
        str | None, typer.Option("--database", help="The database of the views [tenant_namespace].", show_default=False)
    ] = None,
) -> None:
    """Print SQL that creates a persistent view of each history table in a namespace, for sessions with Delta's JAR."""
    from pulsar_on_spark.history_table.sql import view_statements

    made = view_statements(open_root(root, root_option), namespace, database)
    for statement in made.statements:
        typer.echo(f"{statement};")  # not wrapped, because that would change the SQL
    for problem in made.problems:
        output.fail(problem)
    if made.problems:
        raise typer.Exit(1)
