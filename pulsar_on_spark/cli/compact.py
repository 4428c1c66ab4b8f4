"""`pulsarpy compact`: compact a topic straight on its root."""

from __future__ import annotations

from typing import Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, open_root
from pulsar_on_spark.topic.compaction.compact import Compaction
from pulsar_on_spark.topic.compaction.compact import compact as compact_topic


def compact(
    topic: Annotated[str, typer.Argument(help="Short (clicks, tenant/namespace/clicks) or full (persistent://...).")],
    root: RootArgument = None,
    root_option: RootOption = None,
    retain_null_key: Annotated[
        bool, typer.Option("--retain-null-key", help="Keep messages without a key instead of dropping them.")
    ] = False,
    memory_mb: Annotated[
        int, typer.Option(min=1, help="Memory for keys; with more keys the topic is read once more for each share.")
    ] = 256,
    as_json: AsJson = False,
) -> None:
    """Keep the newest message of each key for readers that read compacted; the log stays as it is.

    A broker may be running on the root. Each partition is compacted by itself.
    """
    opened = open_root(root, root_option)
    how = Compaction(retain_null_key=retain_null_key, keys_bytes=memory_mb << 20)
    with output.progress(as_json) as progress:
        done = compact_topic(opened, topic, how, progress=progress)
    if as_json:
        output.print_json(done)
        return
    output.table(
        "Compacted",
        ("topic", "outcome", "up to", "read", "size", "left", "size left", "seconds"),
        (
            (
                each.topic,
                each.outcome,
                str(each.horizon),
                each.read_messages,
                output.size(each.read_bytes),
                each.messages,
                output.size(each.bytes),
                f"{each.duration_s:.1f}",
            )
            for each in done
        ),
    )
