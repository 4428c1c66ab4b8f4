"""When the bytes of a client's connection are read, and when they are not."""

from __future__ import annotations

import asyncio
import select
from enum import Flag, auto
from typing import Final


class Pause(Flag):
    """Why nothing is read from a client."""

    NONE = 0
    BROKER = auto()
    """The broker holds all producers back."""
    PENDING = auto()
    """Too many of its own entries are not acknowledged."""
    WRITING = auto()
    """It leaves too much unread."""
    TURN = auto()
    """It is the others' turn."""
    RATE = auto()
    """A topic of its producers is published to faster than it may be."""


_NOT_TAKEN: Final = Pause.BROKER | Pause.PENDING
_HELD: Final = _NOT_TAKEN | Pause.RATE


class Intake:
    """Reads from a connection while there is no reason not to.

    Args:
        transport: The connection.
        max_pending: Its entries without an outcome above which producers are held back, until half of them have one.

    Attributes:
        heard_s: When the client was last heard, or could be again, on the loop's clock.
        is_full: Whether too many of its entries have no outcome.
    """

    def __init__(self, transport: asyncio.Transport, max_pending: int) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._max_pending = max_pending
        self._pending = 0
        self._pauses = Pause.NONE
        self._not_taken_since_s: float | None = None
        self._held_until: asyncio.TimerHandle | None = None
        self.heard_s = self._loop.time()
        self.is_full = False

    def pending_changed(self, entries: int) -> bool:
        """So many more (or fewer) entries wait for their outcome; whether `is_full` has changed."""
        self._pending += entries
        was_full = self.is_full
        self.is_full = self._pending * 2 > self._max_pending if was_full else self._pending >= self._max_pending
        return self.is_full is not was_full

    def hold_producers(self, *, publishes: bool, is_shut: bool) -> None:
        """Read, or not.

        Args:
            publishes: Whether the client has producers that may publish.
            is_shut: Whether nothing is taken from any.
        """
        self._hold(Pause.BROKER, publishes and is_shut)
        self._hold(Pause.PENDING, publishes and self.is_full)
        if not self._pauses & _NOT_TAKEN:
            self._not_taken_since_s = None
        elif self._not_taken_since_s is None:
            self._not_taken_since_s = self._loop.time()

    def hold_for(self, seconds: float) -> None:
        """Read nothing for so long: see `Pause.RATE`."""
        until_s = self._loop.time() + seconds
        if self._held_until is None:
            self.pause(Pause.RATE)
        elif self._held_until.when() >= until_s:
            return
        else:
            self._held_until.cancel()
        self._held_until = self._loop.call_at(until_s, self._held_long_enough)

    def _held_long_enough(self) -> None:
        self._held_until = None
        self._hold(Pause.RATE, False)

    @property
    def is_held(self) -> bool:
        """Whether the broker itself does not read: then silence says nothing."""
        return bool(self._pauses & _HELD)

    @property
    def not_taken_s(self) -> float:
        """For how long nothing was taken from its producers, in seconds; 0 if they are not held back for that."""
        return 0.0 if self._not_taken_since_s is None else self._loop.time() - self._not_taken_since_s

    @property
    def has_hung_up(self) -> bool:
        """Whether the client has closed the connection: while nothing is read, that is seen by asking only."""
        if self._transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def pause(self, why: Pause) -> None:
        """Read nothing, for this reason too."""
        if not self._pauses and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses |= why

    def resume(self, why: Pause) -> None:
        """This is no reason any more."""
        was_paused = bool(self._pauses)
        self._pauses &= ~why
        if was_paused and not self._pauses and not self._transport.is_closing():
            self._transport.resume_reading()

    def _hold(self, why: Pause, is_held: bool) -> None:
        if is_held:
            self.pause(why)
        elif why in self._pauses:
            self.heard_s = self._loop.time()
            self.resume(why)
