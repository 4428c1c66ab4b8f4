"""A history of what a broker's clients saw while it was killed and restarted, and the check of it. Pure.

Clients append events as they happen; one list for all of them gives the order in which they were noted. The judge
holds a history against Pulsar's promises: at-least-once delivery of everything that has a receipt, in order, and
nothing again whose acknowledgement was confirmed. What a client says that it threw away may come behind later messages,
or not at all if the subscription still has it in the end.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

ORDERED: Final = "ordered"
BY_KEY: Final = "by key"
ANY: Final = "any"
Order = Literal["ordered", "by key", "any"]
"""The promise of a subscription: all messages of a producer in order, those of each key, or nothing."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message, named by its producer and a number that grows with each message of this producer."""

    producer: str
    number: int
    key: str = ""

    def __str__(self) -> str:
        return f"{self.producer}/{self.number}"


@dataclass(frozen=True, slots=True)
class Sent:
    """A send; `stored` says that its receipt has come."""

    message: Message
    stored: bool


@dataclass(frozen=True, slots=True)
class Received:
    """A message that a consumer of the subscription was given."""

    subscription: str
    message: Message


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The broker confirmed that the subscription's acknowledgement is durable."""

    subscription: str
    message: Message


@dataclass(frozen=True, slots=True)
class Discarded:
    """A client says that it dropped a message of the subscription: no consumer received or acknowledged it."""

    subscription: str
    message: Message


@dataclass(frozen=True, slots=True)
class Expired:
    """A client says that it acknowledged the chunks of a message that did not become whole in time."""

    subscription: str
    message: Message


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that the subscription still gives to a new consumer: whole, or of an `Expired` one the last chunk."""

    subscription: str
    message: Message


@dataclass(frozen=True, slots=True)
class Restarted:
    """A broker that was killed has a successor; what was delivered before has been noted before."""


Event = Sent | Received | Acknowledged | Discarded | Expired | Waiting | Restarted


class History:
    """Events in the order in which they were noted, by any number of threads."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._stored: set[Message] = set()
        self._settled: defaultdict[str, set[Message]] = defaultdict(set)
        self._lock = threading.Lock()

    def note(self, event: Event) -> None:
        """Add an event."""
        with self._lock:
            self._events.append(event)
            if isinstance(event, Sent) and event.stored:
                self._stored.add(event.message)
            elif isinstance(event, Received | Discarded | Expired):
                self._settled[event.subscription].add(event.message)

    def events(self) -> Sequence[Event]:
        """The events up to now."""
        with self._lock:
            return tuple(self._events)

    def stored_count(self) -> int:
        """Return the number of messages that have a receipt."""
        with self._lock:
            return len(self._stored)

    def behind(self, subscriptions: Iterable[str]) -> int:
        """Return how many messages with a receipt the slowest subscription has not received, or a few less."""
        with self._lock:
            return len(self._stored) - min(len(self._settled[name]) for name in subscriptions)

    def is_settled(self, subscription: str) -> bool:
        """True if the subscription's consumers received, dropped or gave up every message with a receipt."""
        with self._lock:
            return self._stored <= self._settled[subscription]


def violations(
    events: Sequence[Event], subscriptions: Mapping[str, Order], kept: Sequence[Sequence[Message]], exactly_once: bool
) -> list[str]:
    """Return what was wrong, a sentence each; empty if nothing was.

    Args:
        events: The history, to its end: every subscription was there from before the first message, and its consumers
            went on until nothing more came.
        subscriptions: Each with what it promises.
        kept: What each of the topic's partitions holds in the end, in its order.
        exactly_once: Whether producers are deduplicated.
    """
    tried = {event.message for event in events if isinstance(event, Sent)}
    promised = {event.message for event in events if isinstance(event, Sent) and event.stored}
    counts = Counter(message for partition in kept for message in partition)
    return [
        *_of_topic(tried, promised, kept, counts, exactly_once),
        *(
            each
            for name, order in subscriptions.items()
            for each in _of_subscription(events, name, order, tried, counts)
        ),
        *(
            f"{message} has a receipt and did not reach subscription {name}"
            for name in subscriptions
            for message in _sorted(promised - _of(events, Received, name) - _put_off(events, name))
        ),
    ]


def _of_topic(
    tried: set[Message],
    promised: set[Message],
    kept: Sequence[Sequence[Message]],
    counts: Counter[Message],
    exactly_once: bool,
) -> Iterator[str]:
    yield from (f"{message} has a receipt and is not in the topic" for message in _sorted(promised - counts.keys()))
    yield from (f"{message} is in the topic but was never sent" for message in _sorted(counts.keys() - tried))
    if exactly_once:
        yield from (f"{message} is in the topic {count} times" for message, count in counts.items() if count > 1)
    for partition in kept:
        yield from _out_of_order("the topic", partition, lambda message: message.producer)


def _of_subscription(
    events: Sequence[Event], name: str, order: Order, tried: set[Message], counts: Counter[Message]
) -> Iterator[str]:
    received: list[Message] = []
    confirmed: set[Message] = set()
    settled: set[Message] = set()
    """Confirmed before the last restart: nothing that a client still had at hand explains another delivery."""
    for event in events:
        match event:
            case Restarted():
                settled |= confirmed
            case Acknowledged(subscription, message) if subscription == name:
                confirmed.add(message)
            case Received(subscription, message) if subscription == name:
                received.append(message)
                if message in settled and counts[message] == 1:  # what was stored again is another message
                    yield f"{message} came again to subscription {name}, which had acknowledged it before the restart"
    yield from (f"{message} came to subscription {name} but was never sent" for message in _sorted({*received} - tried))
    discarded = _of(events, Discarded, name)  # what comes again comes behind what came since
    received = [message for message in received if message not in discarded]
    if order == ORDERED:
        yield from _out_of_order(f"subscription {name}", received, lambda message: message.producer)
    elif order == BY_KEY:
        keyed = (message for message in received if message.key)
        yield from _out_of_order(f"subscription {name}", keyed, lambda message: (message.producer, message.key))


def _out_of_order(where: str, messages: Iterable[Message], line: Callable[[Message], Hashable]) -> Iterator[str]:
    """First occurrences that come behind a later message of their line; what comes again may come at any place."""
    last: dict[Hashable, Message] = {}
    seen: set[Message] = set()
    for message in messages:
        if message in seen:
            continue
        seen.add(message)
        before = last.get(line(message))
        if before is not None and message.number < before.number:
            yield f"{message} is behind {before} in {where}"
        else:
            last[line(message)] = message


def _put_off(events: Sequence[Event], name: str) -> set[Message]:
    """A client's own fault, and no loss: the subscription has them still."""
    return (_of(events, Discarded, name) | _of(events, Expired, name)) & _of(events, Waiting, name)


def _of(events: Sequence[Event], kind: type[Received | Discarded | Expired | Waiting], name: str) -> set[Message]:
    return {event.message for event in events if isinstance(event, kind) and event.subscription == name}


def _sorted(messages: Iterable[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: (message.producer, message.number))
