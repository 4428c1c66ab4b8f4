"""What only a broker can do at once, for it has the clients: stats of topics, unloading, moving subscriptions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson
from pulsar_on_spark.cli.http_admin import HttpAdmin, RequestRefusedError, topic_path
from pulsar_on_spark.cli.subscriptions import subscriptions_app
from pulsar_on_spark.cli.targets import UrlOption, open_broker
from pulsar_on_spark.cli.topics import topics_app
from pulsar_on_spark.model.errors import InvalidArgumentError

Topic = Annotated[str, typer.Argument(help="The topic.")]
Subscription = Annotated[str, typer.Argument(help="The subscription.")]
_ENDS: Final = {"earliest": {"ledgerId": -1, "entryId": -1}, "latest": {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}}
_MAX_SHOWN_BYTES: Final = 200


@topics_app.command()
def stats(topic: Topic, url: UrlOption = None, as_json: AsJson = False) -> None:
    """Show rates, exact backlogs and who is connected, as the broker sees them."""
    broker = open_broker(url)
    found = _stats(broker, topic)
    if as_json:
        output.print_json(found)
    else:
        _print_stats(topic, found)


@topics_app.command()
def internal_stats(topic: Topic, url: UrlOption = None, as_json: AsJson = False) -> None:
    """Show ledgers, why each segment is kept, and cursors."""
    broker = open_broker(url)
    path = topic_path(topic)
    is_partitioned = _is_partitioned(broker, topic)
    found = broker.get(*path, "partitioned-internalStats" if is_partitioned else "internalStats")
    if as_json:
        output.print_json(found)
        return
    for name, part in (found["partitions"] if is_partitioned else {topic: found}).items():
        _print_internal_stats(name, part)


@topics_app.command()
def unload(topic: Topic, url: UrlOption = None, as_json: AsJson = False) -> None:
    """Close a topic in its broker; clients look it up again."""
    open_broker(url).change("PUT", *topic_path(topic), "unload")
    output.done(f"Unloaded {topic}.", as_json, topic=topic)


@topics_app.command()
def terminate(topic: Topic, url: UrlOption = None, as_json: AsJson = False) -> None:
    """Let a topic take no messages any more."""
    last = open_broker(url).change("POST", *topic_path(topic), "terminate")
    if as_json:
        output.print_json(last)
    else:
        output.say(f"Terminated {topic}; its last message is {last['ledgerId']}:{last['entryId']}.")


@topics_app.command()
def truncate(topic: Topic, url: UrlOption = None, as_json: AsJson = False) -> None:
    """Delete all that is in a topic, whatever is acknowledged and whatever retention says."""
    open_broker(url).change("DELETE", *topic_path(topic), "truncate")
    output.done(f"Truncated {topic}.", as_json, topic=topic)


@topics_app.command()
def trim(topic: Topic, url: UrlOption = None, as_json: AsJson = False) -> None:
    """Delete now what retention need not keep."""
    open_broker(url).change("POST", *topic_path(topic), "trim")
    output.done(f"Trimmed {topic}.", as_json, topic=topic)


@subscriptions_app.command("create")
def create(
    topic: Topic,
    name: Subscription,
    url: UrlOption = None,
    at: Annotated[str, typer.Option(help="earliest, latest, or a message id such as 12:345.")] = "latest",
    as_json: AsJson = False,
) -> None:
    """Create a subscription."""
    open_broker(url).change("PUT", *topic_path(topic), "subscription", name, body=_place(at))
    output.done(f"Created subscription {name!r} on {topic}.", as_json, topic=topic, subscription=name, at=at)


@subscriptions_app.command("skip")
def skip(
    topic: Topic,
    name: Subscription,
    messages: Annotated[int, typer.Argument(min=0, help="How many messages of the backlog.")],
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge the first messages of the backlog."""
    open_broker(url).change("POST", *topic_path(topic), "subscription", name, "skip", str(messages))
    output.done(
        f"Skipped {messages:,} messages of {name!r} on {topic}.",
        as_json,
        topic=topic,
        subscription=name,
        skipped=messages,
    )


@subscriptions_app.command("clear")
def clear(topic: Topic, name: Subscription, url: UrlOption = None, as_json: AsJson = False) -> None:
    """Acknowledge the whole backlog."""
    open_broker(url).change("POST", *topic_path(topic), "subscription", name, "skip_all")
    output.done(f"Cleared the backlog of {name!r} on {topic}.", as_json, topic=topic, subscription=name)


@subscriptions_app.command("expire")
def expire(
    topic: Topic,
    name: Subscription,
    seconds: Annotated[int, typer.Argument(min=0, help="Older than so many seconds.")],
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge what is older."""
    open_broker(url).change("POST", *topic_path(topic), "subscription", name, "expireMessages", str(seconds))
    output.done(
        f"Expired what is older than {seconds:,} s in {name!r} on {topic}.",
        as_json,
        topic=topic,
        subscription=name,
        seconds=seconds,
    )


def seek(
    topic: Topic,
    name: Subscription,
    to: Annotated[str, typer.Argument(help="earliest, latest, a message id such as 12:345, or ms since 1970.")],
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Let a subscription begin anew somewhere; its consumers are sent away, and come back."""
    path = (*topic_path(topic), "subscription", name, "resetcursor")
    broker = open_broker(url)
    if to.isdecimal():
        broker.change("POST", *path, to)
    elif to in _ENDS and _is_partitioned(broker, topic):
        broker.change("POST", *path, "0" if to == "earliest" else str(2**53))
    else:
        broker.change("POST", *path, body=_place(to))
    output.done(
        f"Subscription {name!r} on {topic} begins anew at {to}.", as_json, topic=topic, subscription=name, to=to
    )


def peek(
    topic: Topic,
    name: Subscription,
    entries: Annotated[int, typer.Option("--entries", "-n", min=1, max=1000, help="How many entries.")] = 1,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Look at what a subscription has to come; nothing moves. A batch is one entry."""
    found = list(_peeked(open_broker(url), topic, name, entries))
    if as_json:
        output.print_json(found)
        return
    output.table(
        f"To come for {name!r} on {topic}",
        ("entry", "published", "producer", "key", "messages", "payload"),
        ([each[key] for key in ("id", "published", "producer", "key", "messages", "payload")] for each in found),
    )


def _peeked(broker: HttpAdmin, topic: str, name: str, entries: int) -> Iterator[dict[str, Any]]:
    for place in range(1, entries + 1):
        path = (*topic_path(topic), "subscription", name, "position", str(place))
        try:
            answer = broker.request("GET", path, {})
        except RequestRefusedError as error:
            if error.status == 404 and place > 1:
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
            "payload": answer.content[:_MAX_SHOWN_BYTES].decode(errors="backslashreplace"),
        }


def _place(text: str) -> dict[str, int]:
    if text in _ENDS:
        return _ENDS[text]
    ledger, _, entry = text.partition(":")
    if not (ledger.isdecimal() and entry.isdecimal()):
        raise InvalidArgumentError(f"{text!r} is no place: give earliest, latest or a message id such as 12:345.")
    return {"ledgerId": int(ledger), "entryId": int(entry)}


def _stats(broker: HttpAdmin, topic: str) -> Mapping[str, Any]:
    kind = "partitioned-stats" if _is_partitioned(broker, topic) else "stats"
    found: Mapping[str, Any] = broker.get(*topic_path(topic), kind)
    return found


def _is_partitioned(broker: HttpAdmin, topic: str) -> bool:
    return bool(broker.get(*topic_path(topic), "partitions")["partitions"])


def _print_internal_stats(topic: str, found: Mapping[str, Any]) -> None:
    output.table(
        f"Ledgers of {topic}",
        ("ledger", "state", "entries", "messages", "size", "too few copies"),
        (
            (
                str(each["ledgerId"]),
                each["state"],
                each["entries"],
                each["messages"],
                output.size(each["size"]),
                "yes" if each["underReplicated"] else "no",
            )
            for each in found["ledgers"]
        ),
    )
    output.table(
        "Sealed segments",
        ("first entry", "entries", "why it is kept"),
        (
            (f"{ledger['ledgerId']}:{each['first']}", each["entries"], each["whyKept"])
            for ledger in found["ledgers"]
            for each in ledger["segments"]
        ),
    )
    output.table(
        "Cursors",
        ("subscription", "acknowledged up to", "entries left", "acknowledged beyond", "state"),
        (
            (
                name,
                each["markDeletePosition"],
                each["numberOfEntriesSinceFirstNotAckedMessage"],
                each["individuallyDeletedMessages"],
                each["state"],
            )
            for name, each in found["cursors"].items()
        ),
    )


def _print_stats(topic: str, found: Mapping[str, Any]) -> None:
    output.say(
        f"{topic}: {found['storedMessages']:,} messages, {output.size(found['storageSize'])}; "
        f"in {found['msgRateIn']:,.1f}/s, {output.size(int(found['msgThroughputIn']))}/s; "
        f"out {found['msgRateOut']:,.1f}/s, {output.size(int(found['msgThroughputOut']))}/s"
    )
    output.table(
        "Producers",
        ("name", "rate", "address", "client"),
        (
            (each["producerName"], f"{each['msgRateIn']:,.1f}/s", each["address"], each["clientVersion"])
            for each in found["publishers"]
        ),
    )
    output.table(
        "Subscriptions",
        ("name", "type", "backlog", "backlog size", "unacked", "rate out", "consumers", "held by"),
        (
            (
                name,
                each["type"],
                each["msgBacklog"],
                output.size(each["backlogSize"]),
                each["unackedMessages"],
                f"{each['msgRateOut']:,.1f}/s",
                len(each["consumers"]),
                each.get("owner"),
            )
            for name, each in found["subscriptions"].items()
        ),
    )
