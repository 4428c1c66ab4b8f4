"""`pulsarpy offload`: move the old segments of a topic to cold storage paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, Topic, open_root
from pulsar_on_spark.cli.units import size_bytes
from pulsar_on_spark.model.names import TopicName

if TYPE_CHECKING:
    from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadReport


def offload(
    topic: Topic,
    root: RootArgument = None,
    root_option: RootOption = None,
    size_threshold: Annotated[
        str, typer.Option("--size-threshold", "-s", help="Newest key and value bytes that stay, e.g. 10G [0].")
    ] = "0",
    as_json: AsJson = False,
) -> None:
    """Move a topic's sealed segments to cold storage paths, and delete other copies whose deletion lag is over.

    A file moves with all topics in it: it stays if another topic needs its part. A broker may be running on the root.
    """
    from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest
    from pulsar_on_spark.topic.maintenance.offload.offloading import offload as offload_now

    request = OffloadRequest(TopicName.parse(topic), keep_bytes=size_bytes(size_threshold, "--size-threshold"))
    opened = open_root(root, root_option)
    with output.progress(as_json) as progress:
        done = offload_now(opened, request, progress=progress)
    if as_json:
        output.print_json(done)
    else:
        _print(done)
    for problem in done.problems:
        output.fail(problem)
    if not done.is_complete:
        raise typer.Exit(1)


def _print(done: OffloadReport) -> None:
    output.table(
        "Offloaded",
        ("files", "number"),
        (
            ("moved to cold paths", done.moved.moved),
            ("bytes moved", done.moved.bytes),
            ("without other copies now", done.released.moved),
            ("shared with segments that stay", done.shared),
            ("waiting for a cold path", done.waiting),
        ),
    )
