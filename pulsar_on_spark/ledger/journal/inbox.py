"""Messages of other threads to the journal's event loop, and its wake-ups.

For a small group, a wake-up costs more than everything else that a path's thread does in Python, and the loop cannot
use the first of the two answers that an ack quorum needs. So a path's report wakes the loop only if it completes the
quorum of the next frame; other reports are handled together with it, or at the next tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber
from pulsar_on_spark.ledger.journal.messages import CopyAcked

_M = TypeVar("_M")


class Inbox(Generic[_M]):
    """A queue of messages from any thread to one reader.

    Args:
        wake: Makes the reader call `take_messages` soon; called in any thread.
        ack_quorum: The number of copies that acknowledge a frame.
    """

    def __init__(self, wake: Callable[[], None], ack_quorum: int) -> None:
        self._wake = wake
        self._ack_quorum = ack_quorum
        self._messages: deque[_M | CopyAcked] = deque()
        self._is_woken = False
        self._watermarks: dict[Copy, FrameNumber] = {}
        self._awaited: tuple[tuple[Copy, ...], FrameNumber] | None = None

    def post(self, message: _M | CopyAcked) -> None:
        """Add a message; called in any thread."""
        self._messages.append(message)
        if isinstance(message, CopyAcked) and not self._is_awaited(message):
            return
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def take_messages(self) -> Iterator[_M | CopyAcked]:
        """Take all messages. Messages that arrive meanwhile are included or wake the reader again."""
        self._is_woken = False
        while self._messages:
            yield self._messages.popleft()

    def expect(self, awaited: tuple[tuple[Copy, ...], FrameNumber] | None) -> None:
        """Set the copies and the frame to wait for; None to wake the reader for every report.

        A copy's report then wakes the reader only if it completes an ack quorum of these copies for this frame.
        """
        if awaited is not None and (self._awaited is None or awaited[0] is not self._awaited[0]):
            for copy in list(self._watermarks):
                if copy not in awaited[0]:
                    self._watermarks.pop(copy)
        self._awaited = awaited

    def _is_awaited(self, report: CopyAcked) -> bool:
        """Return True if this report completes the quorum of the awaited frame, so that the event loop must be woken.

        Each thread stores its watermark before it counts, so at least one of two threads finds the quorum complete. If
        `expect` is called in between, the threads count for an earlier frame, which costs one extra wake-up.
        """
        self._watermarks[report.copy] = report.watermark
        awaited = self._awaited
        if awaited is None:
            return True
        copies, number = awaited
        watermarks = self._watermarks
        return sum(watermarks.get(copy, -1) >= number for copy in copies) >= self._ack_quorum
