"""The receivers of a journal's reports: one sink for entries, one for cursor records, and the shell's owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pulsar_on_spark.ledger.journal.groups import Group


class EntrySink(Protocol):
    """Receiver of the outcome of entries, called in the event loop. Methods must not raise, and may add entries."""

    def on_entries_acknowledged(self, contexts: Sequence[Any]) -> None:
        """Handle durable entries: the context of each `Journal.add_entries`, in the order of these calls."""

    def on_entries_unknown(self, contexts: Sequence[Any]) -> None:
        """Handle entries that will never be acknowledged, as above; they may or may not be in the journal."""

    def on_journal_room(self) -> None:
        """Resume adding: `Journal.can_add` has become True again."""


class CursorSink(Protocol):
    """Receiver of the outcome of cursor records, under the rules of `EntrySink`."""

    def on_cursors_acknowledged(self, contexts: Sequence[Any]) -> None:
        """Handle durable cursor records; their contexts are in the order in which the records were added."""

    def on_cursors_unknown(self, contexts: Sequence[Any]) -> None:
        """Handle cursor records that will never be acknowledged; they may or may not be in the journal."""

    def on_journal_room(self) -> None:
        """Resume adding: `Journal.can_add` has become True again."""


class ShellOwner(Protocol):
    """Callbacks of `WriterShell`. All are called in the event loop."""

    def on_opened(self) -> None:
        """Begin to send groups: the log is open."""

    def on_groups_acknowledged(self, groups: Sequence[Group]) -> None:
        """Handle durable groups, in the order in which they were sent."""

    def on_starved(self) -> None:
        """Handle a lack of paths: fewer than the ack quorum are left, so nothing is acknowledged and no log opened."""

    def on_turn(self) -> None:
        """Try to send a group: an event has arrived, or time has passed."""

    def on_over(self, reason: str | None, groups: Sequence[Group]) -> None:
        """Handle the end of the log. Called once.

        Args:
            reason: The reason why the log was lost; None if it was closed.
            groups: The groups that will never be acknowledged.
        """
