"""What an incarnation tells its broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pulsar_on_spark.model.ids import EntryId
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import OpenLedger


class Appended(NamedTuple):
    """An entry that was appended, and what its appender wants to be reminded of."""

    ledger: OpenLedger
    entry_id: EntryId
    context: object


class IncarnationListener(Protocol):
    """Who is told what happens; called in the event loop, must not raise. See `JournalListener`."""

    def acknowledged(self, entries: Sequence[Appended]) -> None:
        """These entries are durable, in the order of appending."""

    def cursors_acknowledged(self, contexts: Sequence[object]) -> None:
        """These cursor records are durable."""

    def unknown(self, contexts: Sequence[object]) -> None:
        """These (`Appended`, or contexts of cursor records) were not acknowledged and never will be."""

    def room(self) -> None:
        """`can_append` has become True again."""

    def ended(self, reason: str) -> None:
        """The incarnation is over: stop serving, and exit."""
