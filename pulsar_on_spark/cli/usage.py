"""`pulsarpy usage`: the use of space on the storage paths of a root."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, open_root

if TYPE_CHECKING:
    from pulsar_on_spark.topic.maintenance.usage import RootUsage


def usage(
    root: RootArgument = None,
    root_option: RootOption = None,
    top: Annotated[int, typer.Option("--top", "-n", min=1, help="Number of topics and subscriptions to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the use of space on each storage path by reason, and the topics and subscriptions that use most of it."""
    from pulsar_on_spark.topic.maintenance.usage import usage as look

    opened = open_root(root, root_option)
    with output.waiting("scanning the files of all storage paths"):
        used = look(opened)
    if as_json:
        output.print_json(used)
    else:
        _print(used, top)


def _print(used: RootUsage, top: int) -> None:
    total = sum(path.bytes for path in used.paths)
    output.say(
        f"Root {used.root}: {output.size(total)} on {len(used.paths)} storage paths, "
        f"{output.size(used.metadata_bytes)} of metadata, {output.size(used.history_bytes)} of histories."
    )
    reasons = list(dict.fromkeys(reason for path in used.paths for reason in path.by_reason))
    output.table(
        "Storage paths",
        ("for", *(f"{path.path_id}: {path.directory}" for path in used.paths), "all"),
        (
            [*cells, output.size(sum(path.by_reason.get(reason, 0) for path in used.paths))]
            for reason in reasons
            for cells in [[reason, *(output.size(path.by_reason.get(reason, 0)) for path in used.paths)]]
        ),
    )
    for path in used.paths:
        if path.problem:
            output.say(path.problem)
    output.table(
        _title("Topics", top, len(used.topics)),
        ("name", "messages", "on storage paths", "compacted ledger", "offloaded", "history", "not sealed yet"),
        (
            (
                row.name,
                output.size(row.message_bytes),
                output.size(row.log_bytes),
                output.size(row.compacted_bytes),
                output.size(row.offloaded_bytes),
                output.size(row.history_bytes),
                output.size(row.unsealed_bytes),
            )
            for row in used.topics[:top]
        ),
    )
    output.table(
        _title("Subscriptions", top, len(used.subscriptions)),
        ("topic", "name", "backlog", "backlog size"),
        (
            (row.topic, row.name, row.backlog_messages, output.size(row.backlog_bytes))
            for row in used.subscriptions[:top]
        ),
    )


def _title(what: str, top: int, number: int) -> str:
    return f"{what}, the first {top} of {number:,}" if number > top else what
