"""`pulsarpy usage`: the use of space on the disks of a root."""

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
    """Show what uses space on each storage path and why, and the topics and subscriptions that use most."""
    from pulsar_on_spark.topic.maintenance.usage import usage as look

    opened = open_root(root, root_option)
    with output.waiting("scanning the files of all storage paths"):
        found = look(opened)
    if as_json:
        output.print_json(found)
    else:
        _print(found, top)


def _print(found: RootUsage, top: int) -> None:
    total = sum(path.bytes for path in found.paths)
    output.say(
        f"Root {found.root}: {output.size(total)} on {len(found.paths)} storage paths, "
        f"{output.size(found.metadata_bytes)} of metadata."
    )
    reasons = list(dict.fromkeys(reason for path in found.paths for reason in path.by_reason))
    output.table(
        "Storage paths",
        ("for", *(f"{path.path_id}: {path.directory}" for path in found.paths), "all"),
        (
            [*cells, output.size(sum(path.by_reason.get(reason, 0) for path in found.paths))]
            for reason in reasons
            for cells in [[reason, *(output.size(path.by_reason.get(reason, 0)) for path in found.paths)]]
        ),
    )
    for path in found.paths:
        if path.problem:
            output.say(path.problem)
    output.table(
        _title("Topics", top, len(found.topics)),
        ("name", "messages", "on storage paths", "compacted ledger", "not sealed yet"),
        (
            (
                each.name,
                *map(output.size, (each.message_bytes, each.log_bytes, each.compacted_bytes, each.unsealed_bytes)),
            )
            for each in found.topics[:top]
        ),
    )
    output.table(
        _title("Subscriptions", top, len(found.subscriptions)),
        ("topic", "name", "backlog", "backlog size"),
        (
            (each.topic, each.name, each.backlog_messages, output.size(each.backlog_bytes))
            for each in found.subscriptions[:top]
        ),
    )


def _title(what: str, top: int, number: int) -> str:
    return f"{what}, the first {top} of {number:,}" if number > top else what
