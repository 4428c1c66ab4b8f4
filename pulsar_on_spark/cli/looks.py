"""`pulsarpy topics stats`, `internal-stats` and `peek`: contents of topics and backlogs of cursors, without changes.

They also work with brokers of Apache Pulsar: fields that those lack are shown as absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, Subscription, Topic
from pulsar_on_spark.cli.broker_target import BrokerTarget
from pulsar_on_spark.cli.targets import UrlOption, open_target
from pulsar_on_spark.cli.topics import topics_app

_MAX_SHOWN_BYTES: Final = 200
_WORDS: Final = {True: "yes", False: "no", None: None}
_PEEKED: Final = ("id", "published", "producer", "key", "messages", "payload")


@topics_app.command()
def stats(
    topic: Topic,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Show stored messages and exact backlogs; by --url also rates and connected clients, which only a broker has."""
    target = open_target(root, root_option, url)
    found = target.stats(topic)
    if as_json:
        output.print_json(found)
        return
    stored = found.get("storedMessages")
    messages = "" if stored is None else f"{stored:,} messages, "
    output.say(f"{topic}: {messages}{output.size(found.get('storageSize'))}")
    if isinstance(target, BrokerTarget):
        _print_producers(found)
    _print_subscriptions(found, with_clients=isinstance(target, BrokerTarget))


@topics_app.command()
def internal_stats(
    topic: Topic,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Show ledgers, the reason why each segment is kept, and cursors."""
    found = open_target(root, root_option, url).internal_stats(topic)
    if as_json:
        output.print_json(found)
        return
    for name, part in found.get("partitions", {topic: found}).items():
        _print_internal_stats(name, part)


def peek(
    topic: Topic,
    name: Subscription,
    root: RootArgument = None,
    root_option: RootOption = None,
    entries: Annotated[int, typer.Option("--entries", "-n", min=1, max=1000, help="Number of entries.")] = 1,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the next entries of a subscription without moving its cursor. A batch is one entry."""
    peeked = open_target(root, root_option, url).peek(topic, name, entries)
    found = [{**each, "payload": _text(each["payload"])} for each in peeked]
    if as_json:
        output.print_json(found)
        return
    output.table(
        f"To come for {name!r} on {topic}", ("entry", *_PEEKED[1:]), ([each[key] for key in _PEEKED] for each in found)
    )


def _text(payload: bytes) -> str:
    return payload[:_MAX_SHOWN_BYTES].decode(errors="backslashreplace")


def _print_internal_stats(topic: str, found: Mapping[str, Any]) -> None:
    output.table(
        f"Ledgers of {topic}",
        ("ledger", "state", "entries", "messages", "size", "too few copies"),
        (
            (
                str(each["ledgerId"]),
                each.get("state"),
                each.get("entries"),
                each.get("messages"),
                output.size(each.get("size")),
                _WORDS[each.get("underReplicated")],
            )
            for each in found.get("ledgers", ())
        ),
    )
    segments = [
        (ledger["ledgerId"], each) for ledger in found.get("ledgers", ()) for each in ledger.get("segments", ())
    ]
    output.table(
        "Sealed segments",
        ("first entry", "entries", "size", "why it is kept"),
        (
            (f"{ledger}:{each['first']}", each["entries"], output.size(each["size"]), each["whyKept"])
            for ledger, each in segments
        ),
    )
    kept: Counter[str] = Counter()
    for _, each in segments:
        kept[each["whyKept"]] += each["size"]
    if len(segments) > 1:
        output.table("Kept", ("why", "size"), ((why, output.size(size)) for why, size in kept.most_common()))
    output.table(
        "Cursors",
        ("subscription", "acknowledged up to", "entries left", "acknowledged beyond", "state"),
        (
            (
                name,
                each.get("markDeletePosition"),
                each.get("numberOfEntriesSinceFirstNotAckedMessage"),
                each.get("individuallyDeletedMessages"),
                each.get("state"),
            )
            for name, each in found.get("cursors", {}).items()
        ),
    )


def _print_producers(found: Mapping[str, Any]) -> None:
    output.say(
        f"In {_rate(found, 'msgRateIn')}, {_throughput(found, 'msgThroughputIn')}; "
        f"out {_rate(found, 'msgRateOut')}, {_throughput(found, 'msgThroughputOut')}"
    )
    output.table(
        "Producers",
        ("name", "rate", "address", "client"),
        (
            (each.get("producerName"), _rate(each, "msgRateIn"), each.get("address"), each.get("clientVersion"))
            for each in found.get("publishers", ())
        ),
    )


def _print_subscriptions(found: Mapping[str, Any], *, with_clients: bool) -> None:
    output.table(
        "Subscriptions",
        (
            *("name", "type", "backlog", "backlog size"),
            *(("unacked", "rate out", "consumers") if with_clients else ()),
            "held by",
        ),
        (
            (
                name,
                each.get("type"),
                each.get("msgBacklog"),
                output.size(each.get("backlogSize")),
                *(_of_clients(each) if with_clients else ()),
                each.get("owner"),
            )
            for name, each in found.get("subscriptions", {}).items()
        ),
    )


def _of_clients(subscription: Mapping[str, Any]) -> tuple[int | None, str, int | None]:
    consumers = subscription.get("consumers")
    rate = _rate(subscription, "msgRateOut")
    return subscription.get("unackedMessages"), rate, None if consumers is None else len(consumers)


def _rate(found: Mapping[str, Any], name: str) -> str:
    return f"{found[name]:,.1f}/s" if name in found else "-"


def _throughput(found: Mapping[str, Any], name: str) -> str:
    return f"{output.size(int(found[name]))}/s" if name in found else "-"
