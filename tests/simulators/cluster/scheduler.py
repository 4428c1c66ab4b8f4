"""Processes with event loops of their own over one virtual clock, in an order that a seed decides."""

from __future__ import annotations

import asyncio
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context
from enum import Enum
from itertools import count
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from pulsar_on_spark.model.errors import PulsarpyError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
LONGEST_S: Final = 2.0
"""The longest time until work in a thread begins, and until its result is told."""
Callback = Callable[[], object]


class Life(Enum):
    """The state of a process."""

    RUNS = "runs"
    PAUSED = "paused"
    DEAD = "dead"


class Scheduler:
    """The virtual clock and all that is to happen.

    Args:
        chance: The source of all choices.

    Attributes:
        now_s: The time, in seconds.
        failure: The first error that no caller has handled.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_s = 0.0
        self.failure: BaseException | None = None
        self._order = count()
        self._due: list[tuple[float, int, ProcessLoop | None, Callback]] = []

    def at(self, when_s: float, callback: Callback, process: ProcessLoop | None = None) -> None:
        """Let something happen at a time, in a process: it waits while the process is paused."""
        heapq.heappush(self._due, (when_s, next(self._order), process, callback))

    def run(self, until_s: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Run until a time, or until a condition holds.

        Raises:
            BaseException: the first error that no caller has handled.
        """
        while self._due and self._due[0][0] <= until_s and not is_done():
            when_s, _, process, callback = heapq.heappop(self._due)
            self.now_s = max(self.now_s, when_s)
            if process is None:
                callback()
            elif process.life is Life.PAUSED:
                process.held.append(callback)
            elif process.life is Life.RUNS:
                process.run_turn(callback)
            if self.failure is not None:
                raise self.failure
        self.now_s = max(self.now_s, until_s) if not is_done() else self.now_s


class ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of a simulated process; work in threads takes a random time.

    Attributes:
        life: Whether the process runs.
        held: What waits for the end of a pause.
    """

    def __init__(self, scheduler: Scheduler, on_submit: Callable[[], Callback]) -> None:
        """Begin to run; `on_submit` is called when work is given to a thread, and its result when the work begins."""
        super().__init__()
        self.life = Life.RUNS
        self.held: deque[Callback] = deque()
        self._scheduler = scheduler
        self._on_submit = on_submit
        self._turns: deque[events.Handle] = deque()
        self._is_running = False

    # -- life ----------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop the process as by SIGSTOP."""
        if self.life is Life.RUNS:
            self.life = Life.PAUSED

    def wake(self) -> None:
        """Continue a paused process: all that was due is due now."""
        if self.life is Life.PAUSED:
            self.life = Life.RUNS
            while self.held:
                self._scheduler.at(self._scheduler.now_s, self.held.popleft(), self)

    def kill(self) -> None:
        """End the process as by SIGKILL."""
        self.life = Life.DEAD
        for task in asyncio.all_tasks(self):
            if (work := task.get_coro()) is not None:
                with suppress(ValueError, RuntimeError):  # the task that ends its own process
                    work.close()
        self.held.clear()
        self._turns.clear()

    def run_turn(self, callback: Callback) -> None:
        """Run a callback, and all that becomes ready by it."""
        self._is_running = True
        events._set_running_loop(self)
        try:
            callback()
            while self._turns and self.life is Life.RUNS:
                handle = self._turns.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)
            self._is_running = False

    def spawn(self, work: Coroutine[Any, Any, T], then: Callable[[asyncio.Task[T]], None]) -> None:
        """Run a coroutine in the process, and tell its end; a process that dies tells none."""
        self.create_task(work).add_done_callback(then)

    # -- the event loop ------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time."""
        return self._scheduler.now_s

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> events.Handle:
        """Run a callback in this turn of the process, or in one of its own."""
        handle = events.Handle(callback, args, self, context)
        self._turns.append(handle)
        if not self._is_running:
            self._scheduler.at(self._scheduler.now_s, lambda: None, self)
        return handle

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> events.TimerHandle:
        """Run a callback at a time."""
        timer = events.TimerHandle(when, callback, args, self, context)
        self._scheduler.at(when, lambda: None if timer.cancelled() else timer._run(), self)
        return timer

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a function after a while, and tell its result after a while: the process may end in between."""
        answer: asyncio.Future[T] = self.create_future()
        begin = self._on_submit()

        def work() -> None:
            begin()
            done: asyncio.Future[T] = self.create_future()
            try:
                done.set_result(func(*args))
            except Exception as error:  # the caller gets whatever it is
                done.set_exception(error)
            self._later(lambda: tell(done))

        def tell(done: asyncio.Future[T]) -> None:
            error = done.exception()
            if answer.cancelled():
                return
            if error is None:
                answer.set_result(done.result())
            else:
                answer.set_exception(error)

        self._later(work)
        return answer

    def _later(self, callback: Callback) -> None:
        chance = self._scheduler.chance
        longest_s = LONGEST_S if chance.random() < 0.03 else 0.05
        self._scheduler.at(self._scheduler.now_s + chance.uniform(0.001, longest_s), callback, self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an error that no caller has handled, if it is a defect."""
        error = context.get("exception")
        if error is not None and not isinstance(error, PulsarpyError | TimeoutError) and self.life is Life.RUNS:
            self._scheduler.failure = self._scheduler.failure or error
