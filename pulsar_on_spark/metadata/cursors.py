"""Cursor rows: the one record of the `cursors` table, and the rule which row of a slot counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

WHOLE: Final = -1
"""The slot of a row that stands for all slots: a broker's snapshot, which has ack holes instead of slots."""


@dataclass(frozen=True, slots=True)
class CursorRow:
    """Where a subscription's slot stands: (ledger, entry) is the next entry to read.

    `n` counts the owner's moves within its `epoch`; it is never the mark-delete. Rows are appended blindly: of one
    slot the row with the largest (epoch, n) counts, so a zombie's late row never moves a cursor.
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
        """(topic id, subscription, slot): the rows of which one counts."""
        return (self.topic_id, self.subscription, self.slot)

    @property
    def rank(self) -> tuple[int, int]:
        """(epoch, n): the largest counts."""
        return (self.epoch, self.n)


class Cursors:
    """The cursor rows that count, by topic and subscription. Immutable."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[int, CursorRow]] = {}

    def having(self, rows: Iterable[CursorRow]) -> Cursors:
        """These with more rows taken in: in any order, any number of times."""
        taken = Cursors()
        taken._rows = dict(self._rows)
        for row in rows:
            subscription = (row.topic_id, row.subscription)
            slots = taken._rows.get(subscription, {})
            known = slots.get(row.slot)
            if known is None or row.rank > known.rank:
                taken._rows[subscription] = {**slots, row.slot: row}
        return taken

    def of(self, topic_id: str, subscription: str) -> tuple[CursorRow, ...]:
        """The counting rows of a subscription on a topic, one a slot, by slot."""
        slots = self._rows.get((topic_id, subscription), {})
        return tuple(slots[slot] for slot in sorted(slots))
