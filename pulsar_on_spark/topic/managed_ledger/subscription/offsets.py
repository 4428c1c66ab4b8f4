"""Stream offsets: the ranges of each topic that a query's last batch read.

Spark stores an offset as JSON text, compares offsets by that text and returns them after a restart. It logs only the
*end* offset of a batch, and the start offset that it passes with batch 0 may differ after a restart. So an end offset
is enough to plan its batch: it has the consumer, the topic ids, and *from* and *to* for each topic or slot. Equal
offsets have equal text: ranges are grouped and sorted, keys are sorted, numbers are integers.

An offset of version 2 names the subscription. An offset of version 1 does not; it can be read, but is never written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final, Literal, NoReturn

from pulsar_on_spark.model.errors import FormatVersionError, InvalidArgumentError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.topic.entries.cutting import SLOTS

FORMAT_VERSION: Final = 2
ALL: Final = "all"
"""The slots of a topic that is read as a whole: without a subscription, or under Exclusive or Failover."""
Slots = tuple[int, ...] | Literal["all"]

_MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SlotRange:
    """The part of a batch that some slots of a topic read: the entries in [`start`, `end`).

    Attributes:
        slots: The slot numbers, ascending, or `ALL`.
        epoch: The epoch under which the consumer owns the slots; 0 without a subscription, or if a new query planned
            the batch before its subscription existed.
        start: The first entry of the batch.
        end: The next entry to read after the batch.
        holes: (epoch, n) of the cursor row whose ack holes the batch skips; None if it skips none.
    """

    slots: Slots
    epoch: int
    start: Position
    end: Position
    holes: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        numbers = self.numbers
        rising = all(a < b for a, b in pairwise(numbers))
        if self.slots != ALL and not (numbers and rising and numbers[0] >= 0 and numbers[-1] < SLOTS):
            raise InvalidArgumentError(f"Slots {self.slots!r} are not ascending numbers from 0 to {SLOTS - 1}.")
        if self.start > self.end:
            raise InvalidArgumentError(
                f"A range from {self.start} to {self.end} runs backwards: it ends before it begins."
            )

    @property
    def numbers(self) -> tuple[int, ...]:
        """The slot numbers; empty if the topic is not divided into slots."""
        return () if self.slots == ALL else self.slots

    def _rest(self) -> tuple[int, Position, Position, tuple[int, int]]:
        return (self.epoch, self.start, self.end, self.holes or (-1, -1))


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The part of a batch that reads one topic. Without ranges, the consumer owns no slot of the topic.

    Ranges are normalised: ranges that differ only in their slots are joined, and ranges are sorted by lowest slot.
    """

    topic_id: TopicId
    ranges: tuple[SlotRange, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranges", _grouped(self.ranges))

    def at(self, slot: int) -> SlotRange | None:
        """Return the range that has the slot or is of the whole topic; None if there is none."""
        return next((range_ for range_ in self.ranges if range_.slots == ALL or slot in range_.numbers), None)


FROM_EARLIEST: Final = (SlotRange(ALL, 0, EARLIEST, EARLIEST),)


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """The differences between the existing topics and the topics of an offset, as sorted full names.

    A re-created topic (same name, another id) has appeared and vanished: unread messages of the old topic are lost.
    """

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The offset of a streaming query: its consumer, and the ranges that its last batch read.

    Attributes:
        consumer: The query's consumer.
        topics: The ranges read from each topic, by full name.
        subscription: The subscription of the query; None without one, and in version 1.
    """

    consumer: str
    topics: Mapping[str, TopicOffset]
    subscription: str | None = None

    @property
    def is_subscribed(self) -> bool:
        """True if the query reads under a subscription, which an offset of version 1 does not name."""
        ranges = [range_ for topic in self.topics.values() for range_ in topic.ranges]
        standing_by = any(not topic.ranges for topic in self.topics.values())
        return self.subscription is not None or standing_by or any(range_.epoch > 0 for range_ in ranges)

    def next(self, topics: Mapping[str, TopicOffset]) -> StreamOffset:
        """Return the offset after this one, with these topics; this same offset if they have nothing to read.

        Spark would start a batch for an offset with another text, even if there is nothing to read.
        """
        new = any(range_.start < range_.end for topic in topics.values() for range_ in topic.ranges)
        return replace(self, topics=dict(topics)) if new else self

    def before_batch(self) -> StreamOffset:
        """Return the offset from which this offset's batch began, in which each range ends at its start."""
        topics = {
            name: TopicOffset(topic.topic_id, tuple(replace(range_, end=range_.start) for range_ in topic.ranges))
            for name, topic in self.topics.items()
        }
        return replace(self, topics=topics)

    def reconcile_topics(self, topic_ids: Mapping[str, TopicId]) -> tuple[StreamOffset, TopicChanges]:
        """Return the offset for the topics that exist now (ids by full name), and the differences from this offset.

        New topics start at the earliest message; deleted topics are dropped. If there is nothing to read, the caller
        must return the start offset that Spark passed, because Spark would start a batch for another text.
        """
        existing = {name: topic for name, topic in self.topics.items() if topic_ids.get(name) == topic.topic_id}
        appeared = {name: TopicOffset(id_, FROM_EARLIEST) for name, id_ in topic_ids.items() if name not in existing}
        changes = TopicChanges(tuple(sorted(appeared)), tuple(sorted(self.topics.keys() - existing.keys())))
        if not (changes.appeared or changes.vanished):
            return self, changes
        return replace(self, topics=existing | appeared), changes

    def to_json(self) -> dict[str, object]:
        """Return the JSON object for Spark; its keys are in a fixed order, so that equal offsets have equal text."""
        topics = {name: _topic_to_json(self.topics[name]) for name in sorted(self.topics)}
        named = {"consumer": self.consumer, "subscription": self.subscription}
        return {**named, "topics": topics, "v": FORMAT_VERSION}

    def text(self) -> str:
        """Return the canonical JSON text."""
        return json.dumps(self.to_json(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, value: object) -> StreamOffset:
        """Parse the JSON object that `to_json` returns.

        Raises:
            FormatVersionError: a newer version of pulsar_on_spark wrote the checkpoint.
            InvalidArgumentError: the value is not an offset of this source.
        """
        fields = _object(value, "the offset")
        version = _integer(fields.get("v"), "v", minimum=1)
        if version > FORMAT_VERSION:
            raise FormatVersionError(
                f"The checkpoint's offset has version {version}, and this pulsar_on_spark reads up to "
                f"{FORMAT_VERSION}: upgrade pulsar_on_spark, or start the query with a new checkpointLocation."
            )
        _only(fields, {"v", "consumer", "topics"} | ({"subscription"} if version > 1 else set()), "the offset")
        consumer, subscription = fields.get("consumer"), fields.get("subscription")
        if not isinstance(consumer, str):
            _malformed(f"consumer is {consumer!r}, not a text")
        if not isinstance(subscription, str | None):
            _malformed(f"subscription is {subscription!r}, not a text")
        topics = _object(fields.get("topics"), "topics")
        return cls(consumer, {name: _topic_from_json(name, topic) for name, topic in topics.items()}, subscription)


def _grouped(ranges: tuple[SlotRange, ...]) -> tuple[SlotRange, ...]:
    if any(range_.slots == ALL for range_ in ranges):
        if len(ranges) > 1:
            raise InvalidArgumentError(
                "An offset has a range of a whole topic beside other ranges of that topic: use an offset that the "
                "stream wrote."
            )
        return ranges
    merged = []
    for _, alike in groupby(sorted(ranges, key=SlotRange._rest), key=SlotRange._rest):
        group = list(alike)
        merged.append(replace(group[0], slots=tuple(sorted(slot for range_ in group for slot in range_.numbers))))
    every = [slot for range_ in merged for slot in range_.numbers]
    if len(set(every)) < len(every):
        raise InvalidArgumentError(
            "An offset has a slot in two ranges of one topic: use an offset that the stream wrote."
        )
    return tuple(sorted(merged, key=lambda range_: range_.numbers))


def _topic_to_json(topic: TopicOffset) -> dict[str, object]:
    ranges = [_range_to_json(range_) for range_ in topic.ranges]
    if not ranges:
        return {"id": topic.topic_id}
    if topic.ranges[0].slots == ALL:
        return dict(sorted({"id": topic.topic_id, **ranges[0]}.items()))
    return {"groups": ranges, "id": topic.topic_id}


def _range_to_json(range_: SlotRange) -> dict[str, object]:
    fields: dict[str, object] = {
        "epoch": range_.epoch,
        "from": [range_.start.ledger, range_.start.entry],
        "to": [range_.end.ledger, range_.end.entry],
    }
    if range_.holes is not None:
        fields["holes"] = list(range_.holes)
    if range_.slots != ALL:
        fields["slots"] = slots_text(range_.numbers)
    return dict(sorted(fields.items()))


def _topic_from_json(name: str, value: object) -> TopicOffset:
    where = f"topic {name!r}"
    fields = dict(_object(value, where))
    topic_id = fields.pop("id", None)
    if not isinstance(topic_id, str):
        _malformed(f"the id of {where} is {topic_id!r}, not a text")
    try:
        if "groups" in fields:
            groups = fields.pop("groups")
            if not isinstance(groups, list) or fields:
                _malformed(f"{where} has groups {groups!r} beside {sorted(fields)}")
            ranges = [_range_from_json(where, _object(group, where), slotted=True) for group in groups]
        else:
            ranges = [_range_from_json(where, fields, slotted=False)] if fields else []
        return TopicOffset(TopicId(topic_id), tuple(ranges))
    except InvalidArgumentError as error:
        if error.args[0].startswith(_MALFORMED):
            raise
        _malformed(f"{where}: {error}")


def _range_from_json(where: str, fields: Mapping[str, object], slotted: bool) -> SlotRange:
    _only(fields, {"epoch", "from", "to", "holes"} | ({"slots"} if slotted else set()), where)
    slots: Slots = slots_from_text(fields.get("slots")) if slotted else ALL
    holes = _pair(fields["holes"], f"holes of {where}") if "holes" in fields else None
    start, end = (_pair(fields.get(key), f"{key} of {where}") for key in ("from", "to"))
    return SlotRange(
        slots, _integer(fields.get("epoch"), f"epoch of {where}"), _position(*start), _position(*end), holes
    )


def slots_text(slots: Iterable[int]) -> str:
    """Return ascending slot numbers as text, with consecutive numbers as runs, for example `0-31,40`."""
    runs: list[list[int]] = []
    for slot in slots:
        if runs and slot == runs[-1][1] + 1:
            runs[-1][1] = slot
        else:
            runs.append([slot, slot])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def slots_from_text(text: object) -> tuple[int, ...]:
    """Parse slot numbers as `slots_text` returns them.

    Raises:
        InvalidArgumentError: the value is not a text that `slots_text` returns.
    """
    if not isinstance(text, str) or not re.fullmatch(r"[0-9]{1,2}(-[0-9]{1,2})?(,[0-9]{1,2}(-[0-9]{1,2})?)*", text):
        _malformed(f"slots are {text!r}, not numbers and runs such as '0-31,40'")
    bounds = [[int(bound) for bound in run.split("-")] for run in text.split(",")]
    slots = tuple(slot for run in bounds for slot in range(run[0], run[-1] + 1))
    if slots_text(sorted(set(slots))) != text:
        _malformed(f"slots {text!r} are not in ascending, shortest form")
    return slots


_MALFORMED = "The checkpoint's offset is malformed"


def _malformed(what: str) -> NoReturn:
    raise InvalidArgumentError(
        f"{_MALFORMED}, because it was edited or belongs to another source ({what}): start with a new "
        "checkpointLocation."
    )


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        _malformed(f"{where} is {value!r}, not an object")
    return value


def _only(fields: Mapping[str, object], known: set[str], where: str) -> None:
    if unknown := sorted(fields.keys() - known):
        _malformed(f"{where} has unknown fields {unknown}")


def _integer(value: object, where: str, minimum: int = 0) -> int:
    if type(value) is not int or not minimum <= value <= _MAX_INT64:
        _malformed(f"{where} is {value!r}, not a whole number from {minimum}")
    return value


def _pair(value: object, where: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        _malformed(f"{where} is {value!r}, not a pair of numbers")
    return _integer(value[0], where), _integer(value[1], where)


def _position(ledger: int, entry: int) -> Position:
    return Position(LedgerId(ledger), EntryId(entry))
