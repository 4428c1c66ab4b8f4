"""`pulsarpy compact`: compact a topic, directly in its root or through a broker."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption
from pulsar_on_spark.cli.broker_target import BrokerTarget
from pulsar_on_spark.cli.http_admin import HttpAdmin, RequestRefusedError, topic_path
from pulsar_on_spark.cli.targets import UrlOption, open_target
from pulsar_on_spark.model.errors import InvalidArgumentError

_POLL_S: Final = 0.2


def compact(
    topic: Annotated[str, typer.Argument(help="Short (clicks, tenant/namespace/clicks) or full (persistent://...).")],
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    retain_null_key: Annotated[
        bool, typer.Option("--retain-null-key", help="Keep messages without a key; a broker follows its settings.")
    ] = False,
    memory_mb: Annotated[
        int,
        typer.Option(min=1, help="MiB of memory for keys, on a root; with less, the topic is read several times."),
    ] = 256,
    as_json: AsJson = False,
) -> None:
    """Write a compacted copy of a topic, with the newest message of each key, for readers that read compacted.

    The topic itself is unchanged. A broker may be running on the root. Each partition is compacted separately.
    """
    target = open_target(root, root_option, url)
    if isinstance(target, BrokerTarget):
        if retain_null_key:
            raise InvalidArgumentError(
                "Option --retain-null-key has no effect on a broker, which follows its settings: leave it out, or give "
                "a root instead of --url."
            )
        _by_broker(target.admin, topic)
        output.done(f"Compacted {topic}.", as_json, topic=topic)
        return
    from pulsar_on_spark.topic.maintenance.compaction import compact as compacting

    how = compacting.Compaction(retain_null_key=retain_null_key, keys_bytes=memory_mb << 20)
    with output.progress(as_json) as progress:
        done = compacting.compact(target.root, topic, how, progress=progress)
    if as_json:
        output.print_json(done)
        return
    output.table(
        "Compacted",
        ("topic", "outcome", "up to", "read", "size", "left", "size left", "seconds"),
        (
            (
                compacted.topic,
                compacted.outcome,
                str(compacted.horizon),
                compacted.read_messages,
                output.size(compacted.read_bytes),
                compacted.messages,
                output.size(compacted.bytes),
                f"{compacted.duration_s:.1f}",
            )
            for compacted in done
        ),
    )


def _by_broker(broker: HttpAdmin, topic: str) -> None:
    path = (*topic_path(topic), "compaction")
    broker.change("PUT", *path)
    with output.waiting("compacting"):
        while (compaction := broker.get(*path))["status"] == "RUNNING":
            time.sleep(_POLL_S)
    if compaction["status"] == "ERROR":
        raise RequestRefusedError(f"Topic {topic} could not be compacted: {compaction['lastError']}")
