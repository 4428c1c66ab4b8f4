"""The model: the messages that a reader must get, each once, in order, with its id and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Id = tuple[int, int, int]
"""Ledger, entry and batch index."""

TRIMMING = frozenset({"trim", "truncate", "housekeep"})
"""The steps that may take messages out of the topic."""
WAIT_HOURS = 7 * 24
"""Time after which the topic is trimmed without a history that no build advances."""


class ViolationError(AssertionError):
    """A reader gets something else than it should."""


@dataclass(frozen=True, slots=True)
class Row:
    """A message as a reader gets it; `note` is None where the column is null or not there."""

    id: Id
    number: int
    note: str | None


@dataclass(slots=True)
class Message:
    """A message that was written.

    Attributes:
        number: Its number in the whole run.
        published_ms: Its publish time.
        has_note: True if the topic's schema had the field `note` when it was written.
        id: Its id, once a reader has got it or its producer a receipt.
        is_trimmed: True if the topic has it no longer.
        is_gone: True if `history()` has it no longer.
        is_built: True if the table has it.
    """

    number: int
    published_ms: int
    has_note: bool = False
    id: Id | None = None
    is_trimmed: bool = False
    is_gone: bool = False
    is_built: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of a topic or partition that a reader gets from the topic, from the table, and from `history()`."""

    topic: Sequence[Row]
    table: Sequence[Row]
    history: Sequence[Row]


@dataclass
class Part:
    """The model of a topic without partitions, or of a partition.

    Attributes:
        written: Every message, in the order of writing.
        advanced_hours: The time at which a build has last advanced the history, or the policy was switched on.
        generation: The number of builds by then.
    """

    written: list[Message] = field(default_factory=list)
    advanced_hours: int = 0
    generation: int = 0

    def visible(self) -> list[int]:
        """Return the numbers of the messages that `history()` must return."""
        return [message.number for message in self.written if not message.is_gone]

    def check(self, found: Found, steps: Iterable[str], cut_ms: int | None, is_held: bool) -> None:
        """Hold what was found against the model, and take over what the steps have changed.

        Args:
            found: The rows that a reader gets now.
            steps: The kinds of steps since the last check.
            cut_ms: Messages that were published before may have been removed by the table's retention.
            is_held: True if the topic keeps its messages until they are built.
        """
        kinds = set(steps)
        _require_once("the topic", found.topic)
        _require_once("the table", found.table)
        _require_once("history()", found.history)
        self._check_topic(found.topic, kinds)
        self._check_table(found.table, kinds, cut_ms)
        self._check_history(found.history, kinds, cut_ms, is_held)
        in_table = {row.number for row in found.table}
        for message in self.written:
            message.is_built = message.number in in_table

    def _check_topic(self, rows: Sequence[Row], kinds: set[str]) -> None:
        here = [message for message in self.written if not message.is_trimmed]
        kept = here[len(here) - len(rows) :] if rows else []
        self._require_equal("the topic", rows, kept)
        if len(kept) < len(here) and not kinds & TRIMMING:
            raise ViolationError(f"the topic lacks {[m.number for m in here[: len(here) - len(rows)]]}")
        for message in here[: len(here) - len(rows)]:
            message.is_trimmed = True

    def _check_table(self, rows: Sequence[Row], kinds: set[str], cut_ms: int | None) -> None:
        numbers = {row.number for row in rows}
        for message in self.written:
            if not message.is_built or message.number in numbers or "forget" in kinds:
                continue
            if cut_ms is None or message.published_ms >= cut_ms:
                raise ViolationError(f"the table lacks {message.number}")

    def _check_history(self, rows: Sequence[Row], kinds: set[str], cut_ms: int | None, is_held: bool) -> None:
        numbers = {row.number for row in rows}
        for message in self.written:
            if "forget" in kinds and not message.is_trimmed:
                message.is_gone = False
            if message.number in numbers:
                if message.is_gone:
                    raise ViolationError(f"history() has {message.number} again")
            elif not message.is_gone:
                may_be_removed = cut_ms is not None and message.published_ms < cut_ms
                is_unbuilt = not message.is_built or "forget" in kinds
                may_be_trimmed = message.is_trimmed and is_unbuilt and (not is_held or "forget" in kinds)
                if not (may_be_removed or may_be_trimmed):
                    raise ViolationError(f"history() lacks {message.number}")
                message.is_gone = True
        self._require_equal("history()", rows, [message for message in self.written if not message.is_gone])

    def _require_equal(self, where: str, rows: Sequence[Row], messages: Sequence[Message]) -> None:
        if [row.number for row in rows] != [message.number for message in messages]:
            raise ViolationError(
                f"{where} has {[row.number for row in rows]} instead of {[message.number for message in messages]}"
            )
        for row, message in zip(rows, messages, strict=True):
            message.id = message.id or row.id
            if message.id != row.id:
                raise ViolationError(f"{where} has {message.number} as {row.id} instead of {message.id}")
            if row.note != str(message.number) and (message.has_note or row.note is not None):
                raise ViolationError(f"{where} has {message.number} with the note {row.note}")


def _require_once(where: str, rows: Sequence[Row]) -> None:
    doubled = [number for number, count in Counter(row.number for row in rows).items() if count > 1]
    if doubled:
        raise ViolationError(f"{where} has {doubled} more than once")
