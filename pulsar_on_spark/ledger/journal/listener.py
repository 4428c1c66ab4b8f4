"""What a journal tells its broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pulsar_on_spark.ledger.journal.groups import Group


class JournalListener(Protocol):
    """Who is told what the journal does. Called in the event loop; must not raise, and may add to the journal."""

    def acknowledged(self, contexts: Sequence[object]) -> None:
        """These are durable, in the order in which they were added; entries and cursor records come apart."""

    def unknown(self, contexts: Sequence[object]) -> None:
        """These were not acknowledged and never will be; whether they are in the journal is unknown for good."""

    def room(self) -> None:
        """`can_add` has become True again."""

    def starved(self) -> None:
        """Fewer paths than the ack quorum are left: until `room`, answer producers with a retryable error."""

    def ended(self, reason: str) -> None:
        """The incarnation is over, taken over by another or cut off from its record: stop serving, and exit."""


class ShellOwner(Protocol):
    """Who is told; called in the event loop."""

    def opened(self) -> None:
        """The log is open: groups may be sent."""

    def acknowledged(self, groups: Sequence[Group]) -> None:
        """These are durable, in the order in which they were sent."""

    def starved(self) -> None:
        """Too few paths are left to acknowledge anything, or to open the log."""

    def turned(self) -> None:
        """Something came in, or time has passed: perhaps a group can be sent now."""

    def over(self, reason: str | None, groups: Sequence[Group]) -> None:
        """The log is closed, or lost for a reason; these groups were not acknowledged and never will be. Once."""
