"""`pulsarpy subscriptions list` and `delete`; `operate.py` has the commands that need a broker."""

from __future__ import annotations

from typing import Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption
from pulsar_on_spark.cli.targets import UrlOption, open_target

subscriptions_app = typer.Typer(help="List, create, move and delete subscriptions.", no_args_is_help=True)


@subscriptions_app.command("list")
def list_(
    root: RootArgument = None, root_option: RootOption = None, url: UrlOption = None, as_json: AsJson = False
) -> None:
    """List subscriptions with their cursors and backlogs, one line for each partition."""
    subscriptions = open_target(root, root_option, url).subscriptions()
    if as_json:
        output.print_json(subscriptions)
        return
    output.table(
        "Subscriptions",
        ("topic", "name", "type", "consumers", "cursor", "backlog", "backlog size"),
        (
            (
                cursor.topic,
                cursor.name,
                cursor.type,
                ", ".join(cursor.consumers) or None,
                str(cursor.mark_delete),
                cursor.backlog_messages,
                output.size(cursor.backlog_bytes),
            )
            for subscription in subscriptions
            for cursor in subscription.cursors
        ),
    )


@subscriptions_app.command()
def delete(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    name: Annotated[str, typer.Argument(help="The subscription.")],
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if a consumer is reading it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a subscription on a topic and its partitions."""
    target = open_target(root, root_option, url)
    with output.waiting("checking whether a consumer is alive"):
        target.delete_subscription(topic, name, force=force)
    output.done(f"Deleted subscription {name!r} on {topic}.", as_json, topic=topic, subscription=name)
