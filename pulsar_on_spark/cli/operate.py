"""Commands that need a running broker: unload, terminate, truncate and trim topics, create and move cursors."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, Subscription, Topic
from pulsar_on_spark.cli.http_admin import topic_path
from pulsar_on_spark.cli.subscriptions import subscriptions_app
from pulsar_on_spark.cli.targets import UrlOption, open_broker
from pulsar_on_spark.cli.topics import topics_app
from pulsar_on_spark.cli.units import duration_s, is_duration
from pulsar_on_spark.model.errors import InvalidArgumentError

_ENDS: Final = {"earliest": {"ledgerId": -1, "entryId": -1}, "latest": {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}}

_ENTRIES: Final = "earliest, latest, or a message id such as 12:345"
_POSITIONS: Final = f"1h for an hour ago (s, m, h, d, w), milliseconds since 1970, {_ENTRIES}"


@topics_app.command()
def unload(topic: Topic, url: UrlOption = None, as_json: AsJson = False) -> None:
    """Unload a topic from its broker; clients then look the topic up again."""
    open_broker(url).change("PUT", *topic_path(topic), "unload")
    output.done(f"Unloaded {topic}.", as_json, topic=topic)


@topics_app.command()
def terminate(topic: Topic, url: UrlOption = None, as_json: AsJson = False) -> None:
    """Terminate a topic, which then accepts no more messages."""
    last = open_broker(url).change("POST", *topic_path(topic), "terminate")
    if as_json:
        output.print_json(last)
    else:
        output.say(f"Terminated {topic}; its last message is {last['ledgerId']}:{last['entryId']}.")


@topics_app.command()
def truncate(topic: Topic, url: UrlOption = None, as_json: AsJson = False) -> None:
    """Delete all messages of a topic, also unacknowledged and retained messages."""
    open_broker(url).change("DELETE", *topic_path(topic), "truncate")
    output.done(f"Truncated {topic}.", as_json, topic=topic)


@topics_app.command()
def trim(topic: Topic, url: UrlOption = None, as_json: AsJson = False) -> None:
    """Trim a topic now, instead of at the next periodic trim: delete the messages that retention no longer keeps."""
    open_broker(url).change("POST", *topic_path(topic), "trim")
    output.done(f"Trimmed {topic}.", as_json, topic=topic)


@subscriptions_app.command("create")
def create(
    topic: Topic,
    name: Subscription,
    url: UrlOption = None,
    at: Annotated[str, typer.Option(help=f"{_ENTRIES}.")] = "latest",
    as_json: AsJson = False,
) -> None:
    """Create a subscription."""
    open_broker(url).change("PUT", *topic_path(topic), "subscription", name, body=_position(at, _ENTRIES))
    output.done(f"Created subscription {name!r} on {topic}.", as_json, topic=topic, subscription=name, at=at)


@subscriptions_app.command("skip")
def skip(
    topic: Topic,
    name: Subscription,
    messages: Annotated[int, typer.Argument(min=0, help="Number of messages of the backlog.")],
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
    seconds: Annotated[int, typer.Argument(min=0, help="Age in seconds.")],
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge the messages of the backlog that are older than an age."""
    open_broker(url).change("POST", *topic_path(topic), "subscription", name, "expireMessages", str(seconds))
    output.done(
        f"Expired messages older than {seconds:,} s in {name!r} on {topic}.",
        as_json,
        topic=topic,
        subscription=name,
        seconds=seconds,
    )


def seek(
    topic: Topic,
    name: Subscription,
    to: Annotated[str, typer.Argument(help=f"{_POSITIONS}.")],
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Move a subscription's cursor. The broker disconnects its consumers, which then reconnect."""
    path = (*topic_path(topic), "subscription", name, "resetcursor")
    broker = open_broker(url)
    if to.isdecimal():
        broker.change("POST", *path, to)
    elif is_duration(to):
        broker.change("POST", *path, str(int((time.time() - duration_s(to, "The position")) * 1000)))
    elif to in _ENDS and broker.is_partitioned(topic):
        broker.change("POST", *path, "0" if to == "earliest" else str(2**53))
    else:
        broker.change("POST", *path, body=_position(to, _POSITIONS))
    output.done(f"Moved subscription {name!r} on {topic} to {to}.", as_json, topic=topic, subscription=name, to=to)


def _position(text: str, positions: str) -> dict[str, int]:
    if text in _ENDS:
        return _ENDS[text]
    ledger, _, entry = text.partition(":")
    if not (ledger.isdecimal() and entry.isdecimal()):
        raise InvalidArgumentError(f"{text!r} is not a position: give {positions}.")
    return {"ledgerId": int(ledger), "entryId": int(entry)}
