"""Messages of other threads to the journal's event loop, and its wake-ups.

A wake-up costs more than all else that a path's thread does in Python for a small group, and the loop can do nothing
with the first of two answers that an ack quorum needs. So a path's word wakes it only when it completes the quorum of
the next frame; what comes before and after is taken in with that, or at the next tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber
from pulsar_on_spark.ledger.journal.messages import CopyAcked

_M = TypeVar("_M")


class Inbox(Generic[_M]):
    """Messages of any threads for one.

    Args:
        wake: makes the reader call `take` soon; called in any thread.
        ack_quorum: copies that acknowledge a frame.
    """

    def __init__(self, wake: Callable[[], None], ack_quorum: int) -> None:
        self._wake = wake
        self._ack_quorum = ack_quorum
        self._messages: deque[_M | CopyAcked] = deque()
        self._is_woken = False
        self._watermarks: dict[Copy, FrameNumber] = {}
        self._awaited: tuple[tuple[Copy, ...], FrameNumber] | None = None

    def post(self, message: _M | CopyAcked) -> None:
        """Called in any thread."""
        self._messages.append(message)
        if isinstance(message, CopyAcked) and not self._is_awaited(message):
            return
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def take(self) -> Iterator[_M | CopyAcked]:
        """Take all messages; those that come meanwhile wake the reader again, or are among them."""
        self._is_woken = False
        while self._messages:
            yield self._messages.popleft()

    def expect(self, awaited: tuple[tuple[Copy, ...], FrameNumber] | None) -> None:
        """Let words of copies wake the reader only when an ack quorum of these has this frame; None: always."""
        if awaited is not None and (self._awaited is None or awaited[0] is not self._awaited[0]):
            for copy in list(self._watermarks):
                if copy not in awaited[0]:
                    self._watermarks.pop(copy)
        self._awaited = awaited

    def _is_awaited(self, report: CopyAcked) -> bool:
        """Two threads may both find the quorum complete, never neither: each writes before it counts.

        If `expect` comes in between, they count for an earlier frame, and wake the reader once too often.
        """
        self._watermarks[report.copy] = report.watermark
        awaited = self._awaited
        if awaited is None:
            return True
        copies, number = awaited
        watermarks = self._watermarks
        return sum(watermarks.get(copy, -1) >= number for copy in copies) >= self._ack_quorum
