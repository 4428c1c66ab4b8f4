"""The lines that `consume` and `read` print for messages."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.message_values import ValueSchemas, as_text

if TYPE_CHECKING:
    import pulsar


def print_message(message: pulsar.Message, schemas: ValueSchemas, as_json: bool, *, with_topic: bool = False) -> None:
    """Print a line for a message that Pulsar's client received.

    Args:
        message: The message.
        schemas: The schemas by which the value is decoded.
        as_json: True for a line of JSON.
        with_topic: True to print the topic, too.
    """
    id_ = message.message_id()
    print_line(
        id_text(id_.ledger_id(), id_.entry_id(), id_.batch_index()),
        message.publish_timestamp(),
        message.partition_key() or None,
        schemas.text(message.data(), _schema_version(message)),
        as_json,
        topic=message.topic_name() if with_topic else None,
    )


def print_line(
    id_: str, publish_ms: int, key: str | bytes | None, value: str | None, as_json: bool, *, topic: str | None = None
) -> None:
    """Print a line for a message; the line begins with the topic, if `topic` is given.

    Args:
        id_: The message id for display.
        publish_ms: The publish time, in milliseconds since 1970.
        key: The key; None without a key.
        value: The value for display; None without a value.
        as_json: True for a line of JSON.
        topic: The topic; None to leave it out.
    """
    shown_key = as_text(key) if isinstance(key, bytes) else key
    if as_json:
        line: dict[str, object] = {} if topic is None else {"topic": topic}
        line |= {"id": id_, "publish_time": publish_ms, "key": shown_key, "value": value}
        sys.stdout.write(json.dumps(line) + "\n")
        return
    parts = [id_, "-" if shown_key is None else shown_key, "-" if value is None else value]
    output.say("  ".join(parts if topic is None else [topic, *parts]))


def id_text(ledger: int, entry: int, batch_index: int | None) -> str:
    """Return a message id for display: `ledger:entry`, with `:batch_index` unless that is None or negative."""
    return f"{ledger}:{entry}" if batch_index is None or batch_index < 0 else f"{ledger}:{entry}:{batch_index}"


def _schema_version(message: pulsar.Message) -> bytes | None:
    """Return a message's schema version in eight bytes; None if the client cannot represent it."""
    try:
        version: str = message.schema_version()
        return version.encode()
    except UnicodeDecodeError:  # the client decodes the eight bytes as text
        return None
