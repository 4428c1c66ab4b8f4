"""A cursor of a broker, and the callers that wait until it is durable. No IO: the recorder saves changes."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pulsar_on_spark.model.errors import ConsumerFencedError, PulsarpyError
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor
from pulsar_on_spark.topic.managed_ledger.cursor.record import NO_RECORD, CursorRecord
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import SubscriptionType


class CursorReleasedError(ConsumerFencedError):
    """The broker released the subscription after its last consumer left: the next owner may take it."""


class ChangeRecorder(Protocol):
    """The part of `Recorder` that an open cursor calls."""

    def record_soon(self, cursor: OpenCursor) -> None:
        """Put the cursor's changes into the journal within a second."""

    def record_now(self, cursor: OpenCursor) -> None:
        """Put the cursor's changes into the journal at once, because a caller waits."""


class OpenCursor:
    """The cursor of a subscription that this broker owns. Call all methods in the broker's event loop.

    Attributes:
        part: The topic.
        name: The subscription.
        type: The subscription's type.
        cursor: The mark-delete position and the acknowledged messages. Call `record_changes` after each change.
        lost: The reason why this broker no longer owns the subscription; None while it does.
        recorded_s: Time when the last record was given to the journal, in seconds of the event loop's clock.
        snapshotted: (epoch, n) of the last durable row in the cursors table; None before the first row.
    """

    def __init__(
        self, recorder: ChangeRecorder, part: TopicPart, name: str, type_: SubscriptionType, cursor: Cursor
    ) -> None:
        self.part = part
        self.name = name
        self.type = type_
        self.cursor = cursor
        self.lost: PulsarpyError | None = None
        self.recorded_s = float("-inf")
        self.snapshotted: tuple[int, int] | None = None
        self._recorder = recorder
        self._n = NO_RECORD
        self._next: asyncio.Future[None] | None = None
        """The future that callers await for the next record; None if no caller waits for it."""
        self._last: asyncio.Future[None] | None = None
        """The future that is done when the last taken record is durable; None before the first."""

    def record_changes(self) -> None:
        """Request a record of the cursor's changes: it reaches the journal within a second, if the journal has room."""
        self._recorder.record_soon(self)

    async def wait_durable(self) -> None:
        """Wait until the current acknowledgements are durable, on the journal's ack quorum or in the cursors table.

        Raises:
            PulsarpyError: the subscription or the broker's journal was lost before the acknowledgements were durable.
        """
        if self.lost is not None:
            raise self.lost
        if self.cursor.unrecorded:
            if self._next is None:
                self._next = _future()
                self._recorder.record_now(self)
            await asyncio.shield(self._next)
        elif self._last is not None:
            await asyncio.shield(self._last)

    # -- for the keeper ------------------------------------------------------------------------------------------------

    @property
    def is_waited_for(self) -> bool:
        """True if a caller waits for the next record."""
        return self._next is not None

    @property
    def is_recording(self) -> bool:
        """True while the last record is being written to the journal or the cursors table."""
        return self._last is not None and not self._last.done()

    def take_record(self) -> tuple[CursorRecord, asyncio.Future[None]]:
        """Return a record of the unrecorded changes, and the future to complete when the record is durable."""
        assert self.cursor.unrecorded, "there is nothing to record"
        self._n += 1
        record = self.cursor.take_change(self._n)
        assert record is not None, "unrecorded changes make a record"
        self._last, self._next = self._next or _future(), None
        return record, self._last

    def take_snapshot(self) -> CursorRecord:
        """Return the whole cursor for the cursors table, including changes that the journal does not have."""
        if self.cursor.unrecorded:
            self._n += 1
            self.cursor.take_change(self._n)
        return self.cursor.snapshot()

    def snapshot_failed(self) -> None:
        """Note that the last snapshot may not be stored; request a record that contains the whole cursor."""
        self.cursor.want_snapshot()
        self._recorder.record_now(self)

    def end_cursor(self, reason: PulsarpyError) -> None:
        """End the cursor, and raise the reason in the callers of `wait_durable`.

        After a release without unrecorded changes these callers return normally, as their acknowledgements are durable.
        """
        self.lost = reason
        waiting = [future for future in (self._next, self._last) if future is not None and not future.done()]
        self._next = self._last = None
        for future in waiting:
            if isinstance(reason, CursorReleasedError) and not self.cursor.unrecorded:
                future.set_result(None)
            else:
                future.set_exception(reason)
                future.exception()  # mark it as retrieved, as there may be no caller


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()
