"""`pulsarpy topics stats`, `internal-stats` and `peek`: show the contents of topics and the backlogs of cursors.

These commands also work with brokers of Apache Pulsar. Fields that such a broker lacks are shown as empty.
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
    """Show stored messages and exact backlogs; with --url also rates and clients, which only a broker knows."""
    target = open_target(root, root_option, url)
    topic_stats = target.stats(topic)
    if as_json:
        output.print_json(topic_stats)
        return
    stored = topic_stats.get("storedMessages")
    messages = "" if stored is None else f"{stored:,} messages, "
    output.say(f"{topic}: {messages}{output.size(topic_stats.get('storageSize'))}")
    if isinstance(target, BrokerTarget):
        _print_producers(topic_stats)
    _print_subscriptions(topic_stats, with_clients=isinstance(target, BrokerTarget))


@topics_app.command()
def internal_stats(
    topic: Topic,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Show a topic's ledgers, its segments with the reason why each is kept, and its cursors."""
    contents = open_target(root, root_option, url).internal_stats(topic)
    if as_json:
        output.print_json(contents)
        return
    for name, part in contents.get("partitions", {topic: contents}).items():
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
    """Show the next entries of a subscription without moving its cursor. A batch of messages is one entry."""
    peeked = open_target(root, root_option, url).peek(topic, name, entries)
    shown = [{**entry, "payload": _text(entry["payload"])} for entry in peeked]
    if as_json:
        output.print_json(shown)
        return
    output.table(
        f"Next for {name!r} on {topic}", ("entry", *_PEEKED[1:]), ([entry[key] for key in _PEEKED] for entry in shown)
    )


def _text(payload: bytes) -> str:
    return payload[:_MAX_SHOWN_BYTES].decode(errors="backslashreplace")


def _print_internal_stats(topic: str, contents: Mapping[str, Any]) -> None:
    output.table(
        f"Ledgers of {topic}",
        ("ledger", "state", "entries", "messages", "size", "too few copies"),
        (
            (
                str(ledger["ledgerId"]),
                ledger.get("state"),
                ledger.get("entries"),
                ledger.get("messages"),
                output.size(ledger.get("size")),
                _WORDS[ledger.get("underReplicated")],
            )
            for ledger in contents.get("ledgers", ())
        ),
    )
    segments = [
        (ledger["ledgerId"], segment)
        for ledger in contents.get("ledgers", ())
        for segment in ledger.get("segments", ())
    ]
    output.table(
        "Sealed segments",
        ("first entry", "entries", "size", "why it is kept"),
        (
            (f"{ledger}:{segment['first']}", segment["entries"], output.size(segment["size"]), segment["whyKept"])
            for ledger, segment in segments
        ),
    )
    kept: Counter[str] = Counter()
    for _, segment in segments:
        kept[segment["whyKept"]] += segment["size"]
    if len(segments) > 1:
        output.table("Kept", ("why", "size"), ((why, output.size(size)) for why, size in kept.most_common()))
    output.table(
        "Cursors",
        ("subscription", "acknowledged up to", "entries left", "acknowledged beyond", "state"),
        (
            (
                name,
                cursor.get("markDeletePosition"),
                cursor.get("numberOfEntriesSinceFirstNotAckedMessage"),
                cursor.get("individuallyDeletedMessages"),
                cursor.get("state"),
            )
            for name, cursor in contents.get("cursors", {}).items()
        ),
    )


def _print_producers(topic_stats: Mapping[str, Any]) -> None:
    output.say(
        f"In {_rate(topic_stats, 'msgRateIn')}, {_throughput(topic_stats, 'msgThroughputIn')}; "
        f"out {_rate(topic_stats, 'msgRateOut')}, {_throughput(topic_stats, 'msgThroughputOut')}"
    )
    output.table(
        "Producers",
        ("name", "rate", "address", "client"),
        (
            (
                producer.get("producerName"),
                _rate(producer, "msgRateIn"),
                producer.get("address"),
                producer.get("clientVersion"),
            )
            for producer in topic_stats.get("publishers", ())
        ),
    )


def _print_subscriptions(topic_stats: Mapping[str, Any], *, with_clients: bool) -> None:
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
                subscription.get("type"),
                subscription.get("msgBacklog"),
                output.size(subscription.get("backlogSize")),
                *(_of_clients(subscription) if with_clients else ()),
                subscription.get("owner"),
            )
            for name, subscription in topic_stats.get("subscriptions", {}).items()
        ),
    )


def _of_clients(subscription: Mapping[str, Any]) -> tuple[int | None, str, int | None]:
    """Return a subscription's unacknowledged messages, rate and consumers; None for numbers that are not reported."""
    consumers = subscription.get("consumers")
    rate = _rate(subscription, "msgRateOut")
    return subscription.get("unackedMessages"), rate, None if consumers is None else len(consumers)


def _rate(counted: Mapping[str, Any], name: str) -> str:
    return f"{counted[name]:,.1f}/s" if name in counted else "-"


def _throughput(counted: Mapping[str, Any], name: str) -> str:
    return f"{output.size(int(counted[name]))}/s" if name in counted else "-"
