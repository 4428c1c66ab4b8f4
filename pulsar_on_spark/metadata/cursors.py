"""Cursor rows, the records of the `cursors` table, and the rule that selects the valid row of a slot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

WHOLE: Final = -1
"""The slot number of a row that counts for all slots: a broker's cursor snapshot, which has ack holes."""


@dataclass(frozen=True, slots=True)
class CursorRow:
    """The position of one slot of a subscription: (ledger, entry) is the next entry to read.

    `n` grows with each row that the owner writes within its `epoch`; it is not a position. Rows are appended without
    compare-and-set. The row with the largest (epoch, n) of a slot counts, so a late row of a former owner never moves
    the cursor. `ack_holes` are the acknowledgements beyond the position, encoded; None if there are none.
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
    """The cursor rows that count, which are one for each slot of a subscription on a topic. Immutable."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[int, CursorRow]] = {}

    def having(self, rows: Iterable[CursorRow]) -> Cursors:
        """Return these cursors with more rows applied; the rows may be in any order, and may be applied already."""
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
        """Return the rows that count for a subscription on a topic, one per slot, sorted by slot."""
        slots = self._rows.get((topic_id, subscription), {})
        return tuple(slots[slot] for slot in sorted(slots))
