"""Cursor rows, the records of the `cursors` table, and the rule that selects the valid row of a slot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

WHOLE: Final = -1
"""The slot of a row that is for all slots: a broker's snapshot, which has ack holes instead of slots."""


@dataclass(frozen=True, slots=True)
class CursorRow:
    """Position of a subscription's slot: (ledger, entry) is the next entry to read.

    `n` counts the owner's moves within its `epoch`; it is not the mark-delete. Rows are appended without a check. The
    row with the largest (epoch, n) of a slot counts, so a late row of a former owner never moves the cursor.
    """

    topic_id: str
    subscription: str
    slot: int
    epoch: int
    n: int
    ledger: int
    entry: int
    ack_holes: bytes | None = None

    @property
    def cursor_key(self) -> tuple[str, str, int]:
        """Key (topic id, subscription, slot); only one row of each key counts."""
        return (self.topic_id, self.subscription, self.slot)

    @property
    def rank(self) -> tuple[int, int]:
        """Rank (epoch, n); the row with the largest rank counts."""
        return (self.epoch, self.n)


class Cursors:
    """The cursor rows that count, by topic and subscription. Immutable."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[int, CursorRow]] = {}

    def having(self, rows: Iterable[CursorRow]) -> Cursors:
        """Return these cursors with more rows merged in; order and repetition of the rows have no effect."""
        merged = Cursors()
        merged._rows = dict(self._rows)
        for row in rows:
            subscription = (row.topic_id, row.subscription)
            slots = merged._rows.get(subscription, {})
            previous = slots.get(row.slot)
            if previous is None or row.rank > previous.rank:
                merged._rows[subscription] = {**slots, row.slot: row}
        return merged

    def of(self, topic_id: str, subscription: str) -> tuple[CursorRow, ...]:
        """The rows that count for a subscription on a topic, one per slot, sorted by slot."""
        slots = self._rows.get((topic_id, subscription), {})
        return tuple(slots[slot] for slot in sorted(slots))
