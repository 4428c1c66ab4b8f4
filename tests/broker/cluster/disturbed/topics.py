"""Topics of disturbed brokers, the promises of their subscriptions, and their messages as bytes."""

from __future__ import annotations

from collections.abc import Mapping

from tests.kit.history import ANY, BY_KEY, ORDERED, Message, Order

ORDERS, SPREAD, LARGE = "orders", "spread", "large"
MIXED = "mixed"
"""The topic of the Go and Java clients, which all receive what both have sent."""
WHOLE = "whole"
PARTITIONS = 3
KEYS = 7
SUBSCRIPTIONS: dict[str, Mapping[str, Order]] = {
    ORDERS: {
        "exclusive": ORDERED,
        "failover": ORDERED,
        "shared": ANY,
        "batches": ANY,
        "keys": BY_KEY,
        "confirmed": ORDERED,
        "confirmed up to": ORDERED,
        "confirmed one by one": ANY,
    },
    SPREAD: {"each partition": BY_KEY},
    LARGE: {WHOLE: ORDERED},
}
MAX_MESSAGE_BYTES = 20_000
THE_END = b"the end"
"""The last message of the topic with large messages; the history does not check it."""


def value_of(message: Message) -> bytes:
    return f"{message.producer} {message.number} {message.key}".encode()


def message_of(value: bytes) -> Message:
    producer, number, key, *_ = value.decode().split(" ")
    return Message(producer, int(number), key)
