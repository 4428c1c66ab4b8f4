"""`pulsarpy offload` and `offload-status`: move the old segments of a topic to cold storage paths."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, Topic
from pulsar_on_spark.cli.broker_target import BrokerTarget
from pulsar_on_spark.cli.http_admin import HttpAdmin, RequestRefusedError, topic_path
from pulsar_on_spark.cli.targets import UrlOption, open_target
from pulsar_on_spark.cli.units import size_bytes
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName

if TYPE_CHECKING:
    from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadReport

_POLL_S: Final = 0.2
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Wait for the end of a running offload.")]


def offload(
    topic: Topic,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    size_threshold: Annotated[
        str, typer.Option("--size-threshold", "-s", help="Newest key and value bytes that stay, such as 10G.")
    ] = "0",
    as_json: AsJson = False,
) -> None:
    """Move a topic's sealed segments to cold storage paths, and delete its other copies whose deletion lag is over.

    A file that has segments of several topics moves as a whole, and stays if another topic still needs its segments on
    hot paths. A broker may be running on the root; with --url, the broker offloads in the background.
    """
    target, keep_bytes = open_target(root, root_option, url), size_bytes(size_threshold, "Option --size-threshold")
    if isinstance(target, BrokerTarget):
        _by_broker(target.admin, topic, keep_bytes)
        output.done(f"The broker offloads {topic}: see `pulsarpy offload-status`.", as_json, topic=topic)
        return
    from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest
    from pulsar_on_spark.topic.maintenance.offload.offloading import offload as offload_now

    request = OffloadRequest(TopicName.parse(topic), keep_bytes=keep_bytes)
    with output.progress(as_json) as progress:
        done = offload_now(target.root, request, progress=progress)
    if as_json:
        output.print_json(done)
    else:
        _print(done)
    for problem in done.problems:
        output.fail(problem)
    if not done.is_complete:
        raise typer.Exit(1)


def offload_status(topic: Topic, url: UrlOption = None, wait: Wait = False, as_json: AsJson = False) -> None:
    """Show the state of the last offload of a topic that a broker was requested to run."""
    target = open_target(None, None, url)
    if not isinstance(target, BrokerTarget):
        raise InvalidArgumentError("Only a broker runs offloads in the background: give its URL as --url.")
    status = _status(target.admin, topic)
    with output.waiting("offloading"):
        while wait and status["status"] == "RUNNING":
            time.sleep(_POLL_S)
            status = _status(target.admin, topic)
    if as_json:
        output.print_json(status)
    elif status["status"] != "ERROR":
        output.say(f"Offload of {topic}: {status['status']}.")
    if status["status"] == "ERROR":
        raise RequestRefusedError(f"Topic {topic} could not be offloaded: {status['lastError']}")


def _status(broker: HttpAdmin, topic: str) -> dict[str, Any]:
    status: dict[str, Any] = broker.get(*topic_path(topic), "offload")
    return status


def _by_broker(broker: HttpAdmin, topic: str, keep_bytes: int) -> None:
    """Request an offload of all sealed segments before the newest `keep_bytes` bytes.

    Raises:
        RequestRefusedError: the topic has no such segments, or the broker refuses.
    """
    behind = 0
    for ledger in reversed(broker.get(*topic_path(topic), "internalStats")["ledgers"]):
        for segment in reversed(ledger["segments"]):
            if behind >= keep_bytes:
                end = {"ledgerId": ledger["ledgerId"], "entryId": segment["first"] + segment["entries"]}
                broker.change("PUT", *topic_path(topic), "offload", body=end)
                return
            behind += segment["size"]
    raise RequestRefusedError(
        f"Topic {topic} has no sealed segments before its newest {keep_bytes:,} bytes: give a smaller "
        "--size-threshold, or wait until a ledger is sealed."
    )


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
