"""`pulsarpy topics stats` and `internal-stats`, and `peek`: what is in a topic and behind cursors; nothing moves.

Brokers of Apache Pulsar answer, too: what they do not say is shown as absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from pulsar_on_spark.broker.stats import of_root
from pulsar_on_spark.broker.stats.models import Stats
from pulsar_on_spark.broker.stats.topic_stats import iso
from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, Subscription, Topic
from pulsar_on_spark.cli.http_admin import HttpAdmin, RequestRefusedError, topic_path
from pulsar_on_spark.cli.targets import BrokerTarget, RootTarget, UrlOption, open_target
from pulsar_on_spark.cli.topics import topics_app
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.opened_entry import open_entry
from pulsar_on_spark.topic.entry.rows import StoredEntry
from pulsar_on_spark.topic.root import Root

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
    """Show what is stored and exact backlogs; by --url also rates and who is connected, which only a broker knows."""
    target = open_target(root, root_option, url)
    found = _asked(target, topic, "stats", of_root.stats_of_root)
    if as_json:
        output.print_json(found)
        return
    stored = found.get("storedMessages")
    messages = "" if stored is None else f"{stored:,} messages, "
    output.say(f"{topic}: {messages}{output.size(found.get('storageSize'))}")
    if not isinstance(target, RootTarget):
        _print_producers(found)
    _print_subscriptions(found, with_clients=not isinstance(target, RootTarget))


@topics_app.command()
def internal_stats(
    topic: Topic,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Show ledgers, why each segment is kept, and cursors."""
    found = _asked(open_target(root, root_option, url), topic, "internalStats", of_root.internal_stats_of_root)
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
    entries: Annotated[int, typer.Option("--entries", "-n", min=1, max=1000, help="How many entries.")] = 1,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Look at what a subscription has to come; nothing moves. A batch is one entry."""
    target = open_target(root, root_option, url)
    if isinstance(target, RootTarget):
        found = [_shown(each) for each in of_root.peek_of_root(target.root, TopicName.parse(topic), name, entries)]
    else:
        found = list(_peeked(target.admin, topic, name, entries))
    if as_json:
        output.print_json(found)
        return
    output.table(
        f"To come for {name!r} on {topic}", ("entry", *_PEEKED[1:]), ([each[key] for key in _PEEKED] for each in found)
    )


def is_partitioned(broker: HttpAdmin, topic: str) -> bool:
    """Whether a topic has partitions, by its broker."""
    return bool(broker.get(*topic_path(topic), "partitions")["partitions"])


def _asked(
    target: RootTarget | BrokerTarget, topic: str, kind: str, by_root: Callable[[Root, TopicName], Stats]
) -> dict[str, Any]:
    """What the admin API answers to `kind`, by a broker or by the root alone."""
    if isinstance(target, RootTarget):
        return by_root(target.root, TopicName.parse(topic)).model_dump(mode="json", by_alias=True, exclude_none=True)
    found: dict[str, Any] = target.admin.get(
        *topic_path(topic), f"partitioned-{kind}" if is_partitioned(target.admin, topic) else kind
    )
    return found


def _shown(entry: StoredEntry) -> dict[str, Any]:
    """An entry as its broker's headers would tell it."""
    said, payload = open_entry(entry.data)
    return {
        "id": f"{entry.ledger_id}:{entry.entry_id}",
        "published": iso(said.publish_time / 1000) if said.publish_time else None,
        "producer": said.producer_name or None,
        "key": str(said.partition_key) if said.HasField("partition_key") else None,
        "properties": {each.key: each.value for each in said.properties},
        "messages": said.num_messages_in_batch,
        "payload": _text(payload),
    }


def _peeked(broker: HttpAdmin, topic: str, name: str, entries: int) -> Iterator[dict[str, Any]]:
    path = topic_path(topic)
    for place in range(1, entries + 1):
        try:
            answer = broker.request("GET", (*path, "subscription", name, "position", str(place)), {})
        except RequestRefusedError as error:
            if error.status == 404 and (place > 1 or name in broker.get(*path, "subscriptions")):
                return
            raise
        said = answer.headers
        yield {
            "id": said["X-Pulsar-Message-ID"],
            "published": said.get("X-Pulsar-publish-time"),
            "producer": said.get("X-Pulsar-producer-name"),
            "key": said.get("X-Pulsar-partition-key"),
            "properties": json.loads(said.get("X-Pulsar-PROPERTY", "{}")),
            "messages": int(said.get("X-Pulsar-num-batch-message", "1")),
            "payload": _text(answer.content),
        }


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
    output.table(
        "Sealed segments",
        ("first entry", "entries", "why it is kept"),
        (
            (f"{ledger['ledgerId']}:{each['first']}", each["entries"], each["whyKept"])
            for ledger in found.get("ledgers", ())
            for each in ledger.get("segments", ())
        ),
    )
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
