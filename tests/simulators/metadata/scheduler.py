"""Threads of which one runs at a time, in an order that a seed decides."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

STEPS = 4_000
"""The most steps of a run; one that takes more is ended, and proves nothing."""


class TooLongError(Exception):
    """The run has taken all its steps."""


class Scheduler:
    """Scheduler of processes until all have ended."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.steps = 0
        self._turns: list[threading.Event] = []
        self._asleep_until: dict[int, int] = {}
        self._ended: set[int] = set()
        self._back = threading.Event()
        self._local = threading.local()
        self.failure: BaseException | None = None
        self.before_step: Callable[[], None] = lambda: None

    def run(self, processes: list[Callable[[], None]]) -> None:
        """Run the processes; raises what the first failing one raised."""
        self._turns = [threading.Event() for _ in processes]
        threads = [
            threading.Thread(target=self._process, args=(number, process), daemon=True)
            for number, process in enumerate(processes)
        ]
        for thread in threads:
            thread.start()
        alive = set(range(len(processes)))
        while alive:
            self.steps += 1
            self.before_step()
            awake = [each for each in sorted(alive) if self._asleep_until.get(each, 0) <= self.steps]
            chosen = self.chance.choice(awake or sorted(alive))
            self._back.clear()
            self._turns[chosen].set()
            self._back.wait()
            alive -= self._ended
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def step(self) -> None:
        """Give up the turn until this process is chosen again."""
        number = self._local.number
        if self.steps > STEPS or self.failure is not None:
            raise TooLongError
        if self.chance.random() < 0.01:
            self._asleep_until[number] = self.steps + self.chance.choice((50, 200, 800))
        self._wait(number)

    def sleep(self) -> None:
        """Suspend this process for many steps of the others."""
        self._asleep_until[self._local.number] = self.steps + 600
        self.step()

    def _wait(self, number: int) -> None:
        self._turns[number].clear()
        self._back.set()
        self._turns[number].wait()

    def _process(self, number: int, process: Callable[[], None]) -> None:
        self._local.number = number
        self._turns[number].wait()
        try:
            process()
        except TooLongError:
            pass
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            self._ended.add(number)
            self._back.set()
