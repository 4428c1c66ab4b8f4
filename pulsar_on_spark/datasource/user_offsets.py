"""The options `startingOffsets` and `endingOffsets`, in which users give positions of topics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName

_MAX_INT64 = 2**63 - 1
_T = TypeVar("_T")

Point = Position | Literal["earliest", "latest"]
"""A position (the next entry to read), `earliest` for the first entry, or `latest` for the end as the query starts."""


@dataclass(frozen=True, slots=True)
class UserOffsets:
    """The value of `startingOffsets` or `endingOffsets`.

    Attributes:
        default: The point of topics that are not in `topics`.
        topics: The points of topics by full name.
    """

    default: Point
    topics: Mapping[str, Point]

    def of(self, topic: TopicName) -> Point:
        """Return the point of a topic.

        A partition that is not named itself has the `earliest` or `latest` of its partitioned topic.
        """
        named = self.topics.get(topic.full)
        whole = self.topics.get(topic.partitioned_base.full)
        if named is not None:
            return named
        return whole if whole == "earliest" or whole == "latest" else self.default

    def unmatched(self, topics: Iterable[TopicName]) -> tuple[str, ...]:
        """Return the names in the option that apply to none of `topics`, sorted.

        The name of a partitioned topic applies to its partitions only with `earliest` or `latest`, because a position
        belongs to one partition.
        """
        used = set()
        for topic in topics:
            used.add(topic.full)
            if not isinstance(self.topics.get(topic.partitioned_base.full), Position):
                used.add(topic.partitioned_base.full)
        return tuple(sorted(self.topics.keys() - used))


def parse_starting_offsets(text: str, default: Point = "latest") -> UserOffsets:
    """Return the parsed `startingOffsets`: `earliest`, `latest`, or a JSON object by topic name, short or full.

    A topic's value is `earliest`, `latest`, `[ledger, entry]` or a message id `ledger:entry[:partition[:batch]]` as in
    the column `__messageIdStr`. The start is inclusive, as in pulsar-spark. Entries are never split: the query begins
    with the first message of the entry, whatever the batch index. A message id with a partition means this partition of
    the topic.

    Args:
        text: The option's value.
        default: The point of topics that a JSON value does not name.

    Raises:
        InvalidArgumentError: the value has none of these forms, or names a topic twice; the error names the option and
            its value.
    """
    return _parse(text, default, "startingOffsets", lambda position: position, ("earliest", "latest"))


def parse_ending_offsets(text: str) -> UserOffsets:
    """Return the parsed `endingOffsets`: `latest` or JSON as in `parse_starting_offsets`, without `earliest`.

    The given end is inclusive, as in pulsar-spark and unlike in Spark's Kafka source: the named message's whole entry
    is read. The returned position is exclusive: it is the entry after the named one.

    Raises:
        InvalidArgumentError: the value has none of these forms, or names a topic twice; the error names the option and
            its value.
    """
    return _parse(text, "latest", "endingOffsets", _after, ("latest",))


def _after(last: Position) -> Position:
    return Position(last.ledger, EntryId(last.entry + 1))


def _parse(
    text: str, default: Point, option: str, use: Callable[[Position], Position], words: tuple[str, ...]
) -> UserOffsets:
    word = text.strip().lower()
    if word in words:
        return UserOffsets(_word(word), {})
    try:
        named = _json(text)
        if not isinstance(named, dict) or not named:
            raise ValueError(f"give {' or '.join(words)}, or a JSON object of topics")
        topics: dict[str, Point] = {}
        for name, value in named.items():
            topic, point = _user_point(TopicName.parse(name), value, words)
            if topic.full in topics:
                raise ValueError(f"topic {topic.full!r} is named twice, so leave one out")
            topics[topic.full] = use(point) if isinstance(point, Position) else point
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"Option {option} has the value {text!r}, which cannot be used: {error}.") from error
    return UserOffsets(default, topics)


def _user_point(topic: TopicName, value: object, words: tuple[str, ...]) -> tuple[TopicName, Point]:
    if isinstance(value, str) and value.lower() in words:
        return topic, _word(value.lower())
    match = re.fullmatch(r"([0-9]{1,19}):([0-9]{1,19})(?::(-1|[0-9]{1,10})(?::(-1|[0-9]{1,10}))?)?", str(value))
    if isinstance(value, str) and match:
        numbers = [int(match[1]), int(match[2])]
        partition = int(match[3] or -1)
    elif isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value):
        numbers, partition = value, -1
    else:
        shape = "'ledger:entry[:partition[:batch]]' or [ledger, entry]"
        raise ValueError(f"topic {topic.full!r} has {value!r}, not {' or '.join(words)}, {shape}")
    if not all(0 <= number < _MAX_INT64 for number in numbers):
        raise ValueError(f"topic {topic.full!r} has {value!r}, whose numbers are too large or negative")
    if partition >= 0 and topic.partition_index < 0:
        topic = topic.partition(partition)
    if partition >= 0 and topic.partition_index != partition:
        raise ValueError(
            f"topic {topic.full!r} has a message id of another partition, {partition}, so name that partition"
        )
    return topic, Position(LedgerId(numbers[0]), EntryId(numbers[1]))


def _word(word: str) -> Literal["earliest", "latest"]:
    return "earliest" if word == "earliest" else "latest"


def _json(text: str) -> object:
    """Return the text parsed as JSON; None if it is not JSON. Raise ValueError if an object has a name twice."""
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except json.JSONDecodeError:
        return None


def _distinct(pairs: list[tuple[str, _T]]) -> dict[str, _T]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a topic is named twice, so leave one out")
    return dict(pairs)
