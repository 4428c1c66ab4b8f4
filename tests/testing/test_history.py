"""The judge of histories: a right one passes, and each kind of wrong is found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kit.history import (
    ANY,
    BY_KEY,
    ORDERED,
    Acknowledged,
    Discarded,
    Event,
    Expired,
    Message,
    Order,
    Received,
    Restarted,
    Sent,
    Waiting,
    violations,
)

A1, A2, A3 = (Message("a", number, key) for number, key in ((1, "x"), (2, "y"), (3, "x")))
SENT: list[Event] = [Sent(A1, stored=True), Sent(A2, stored=True), Sent(A3, stored=False)]


def received(*messages: Message) -> list[Event]:
    return [Received("s", message) for message in messages]


def judged(
    events: Sequence[Event], order: Order = ORDERED, kept: Sequence[Message] = (A1, A2, A3), exactly_once: bool = True
) -> list[str]:
    return violations([*SENT, *events], {"s": order}, [kept], exactly_once)


@pytest.mark.parametrize(
    "events",
    [
        received(A1, A2, A3),
        received(A1, A2),  # the third has no receipt
        [*received(A1, A2), Restarted(), *received(A1, A2, A3)],  # at least once
        [*received(A1), Acknowledged("s", A1), *received(A1), Restarted(), *received(A2)],  # it was under way already
        [*received(A1), Restarted(), Acknowledged("s", A1), *received(A1, A2)],
        [*received(A1), Acknowledged("other", A1), Restarted(), *received(A1, A2)],
    ],
)
def test_histories_within_pulsars_guarantees_pass(events: list[Event]) -> None:
    assert judged(events) == []


def test_duplicates_pass_without_deduplication() -> None:
    assert judged(received(A1, A2), kept=[A1, A2, A1, A2], exactly_once=False) == []
    again = [*received(A1, A2), Acknowledged("s", A1), Restarted(), *received(A1, A2)]
    assert judged(again, kept=[A1, A2, A1, A2], exactly_once=False) == []
    assert judged(received(A1, A2), kept=[A1, A2, A1, A2]) == [f"a/{n} is in the topic 2 times" for n in (1, 2)]


def test_orders() -> None:
    assert judged(received(A2, A1), BY_KEY) == []
    assert judged(received(A3, A1, A2), ANY) == []
    assert judged(received(A3, A1, A2), BY_KEY) == ["a/1 is behind a/3 in subscription s"]


@pytest.mark.parametrize(
    ("events", "kept", "wrong"),
    [
        (received(A1), (A1, A2), "a/2 has a receipt and did not reach subscription s"),
        ([*received(A1), Discarded("s", A2)], (A1, A2), "a/2 has a receipt and did not reach subscription s"),
        ([*received(A1), Expired("s", A2)], (A1, A2), "a/2 has a receipt and did not reach subscription s"),
        ([*received(A1), Waiting("s", A2)], (A1, A2), "a/2 has a receipt and did not reach subscription s"),
        (
            [*received(A1), Discarded("other", A2), Waiting("s", A2)],
            (A1, A2),
            "a/2 has a receipt and did not reach subscription s",
        ),
        ([Discarded("s", A1), *received(A3, A2, A1)], (A1, A2, A3), "a/2 is behind a/3 in subscription s"),
        (received(A1, A2), (A1,), "a/2 has a receipt and is not in the topic"),
        (received(A2, A1), (A1, A2), "a/1 is behind a/2 in subscription s"),
        (received(A1, A2), (A2, A1), "a/1 is behind a/2 in the topic"),
        (received(A1, A2), (A1, A2, Message("b", 1)), "b/1 is in the topic but was never sent"),
        (received(A1, A2, Message("b", 1)), (A1, A2), "b/1 came to subscription s but was never sent"),
        (
            [*received(A1), Acknowledged("s", A1), Restarted(), *received(A1, A2)],
            (A1, A2),
            "a/1 came again to subscription s, which had acknowledged it before the restart",
        ),
    ],
)
def test_violations_of_guarantees_are_found(events: list[Event], kept: Sequence[Message], wrong: str) -> None:
    assert judged(events, kept=kept) == [wrong]
