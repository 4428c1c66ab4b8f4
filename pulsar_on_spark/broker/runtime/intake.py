"""Back-pressure on a client's connection: the reasons to pause reading from it."""

from __future__ import annotations

import asyncio
import select
from enum import Flag, auto
from typing import Final


class Pause(Flag):
    """The reasons why reading from a client is paused."""

    NONE = 0
    BROKER = auto()
    """The broker accepts no entries from any producer."""
    PENDING = auto()
    """Too many of the connection's entries are not acknowledged yet."""
    WRITING = auto()
    """Too much data waits to be sent to the client, which reads slowly."""
    TURN = auto()
    """Other clients are read first, because this client has used its turn."""
    RATE = auto()
    """A topic of the client's producers, or the broker, exceeds its publish rate."""
    AUTHENTICATION = auto()
    """The client's credentials are being checked."""


_NOT_TAKEN: Final = Pause.BROKER | Pause.PENDING
_HELD: Final = _NOT_TAKEN | Pause.RATE


class Intake:
    """The back-pressure on one connection: the reasons to pause reading from it.

    Args:
        transport: The transport of the client's connection.
        max_pending: Unacknowledged entries at which reading pauses, until half of them are acknowledged.

    Attributes:
        heard_s: Time of the client's last data, or of the end of the last pause, in seconds on the event loop's clock.
        is_full: True if too many of the connection's entries are not acknowledged yet.
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
        """Change the number of unacknowledged entries by `entries`; return True if `is_full` has changed."""
        self._pending += entries
        was_full = self.is_full
        self.is_full = self._pending * 2 > self._max_pending if was_full else self._pending >= self._max_pending
        return self.is_full is not was_full

    def hold_producers(self, *, publishes: bool, is_shut: bool) -> None:
        """Pause or resume reading from a client with producers.

        Args:
            publishes: True if the client has producers that may publish.
            is_shut: True if the broker accepts no entries.
        """
        self._hold(Pause.BROKER, publishes and is_shut)
        self._hold(Pause.PENDING, publishes and self.is_full)
        if not self._pauses & _NOT_TAKEN:
            self._not_taken_since_s = None
        elif self._not_taken_since_s is None:
            self._not_taken_since_s = self._loop.time()

    def hold_for(self, seconds: float) -> None:
        """Stop reading from this client for some seconds, as it publishes too fast."""
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
        """True if the broker has paused reading, so that a silent client may still be alive."""
        return bool(self._pauses & _HELD)

    @property
    def not_taken_s(self) -> float:
        """Time for which the client's producers have been blocked, in seconds; 0 if they are not."""
        return 0.0 if self._not_taken_since_s is None else self._loop.time() - self._not_taken_since_s

    @property
    def has_hung_up(self) -> bool:
        """True if the client has closed the connection; asks the kernel, because a paused transport does not notice."""
        if self._transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def pause(self, why: Pause) -> None:
        """Add a reason to pause reading."""
        if not self._pauses and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses |= why

    def resume(self, why: Pause) -> None:
        """Remove a reason to pause; reading resumes after the last one."""
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
