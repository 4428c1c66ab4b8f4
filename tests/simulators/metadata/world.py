"""The simulated store, the log's true history, and a process's connection to both."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext

from pulsar_on_spark.metadata.log.entry import LOG, Entry, decode_entry
from pulsar_on_spark.model.errors import ObjectsUnreachableError
from pulsar_on_spark.storage.objects.contract import Created, Exists, Fetched, Listed, Upload, Version
from tests.kit.memory_objects import MemoryObjects
from tests.simulators.metadata.scheduler import Scheduler

SLEEP_BEFORE_ENTRY = 0.04
"""The part of entries before which a process is suspended: this is what the chain is for."""


class World:
    """The objects of one table, what is on its way to them, and what was ever committed.

    Attributes:
        history: The entries that count, by number: each was put when it was the next one.
        zombies: Tokens of entries that were put under a number in the past.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.objects = MemoryObjects()
        self.history: list[Entry] = []
        self.zombies: set[str] = set()
        self._late: list[tuple[str, bytes]] = []
        scheduler.before_step = self._deliver_some

    def put(self, key: str, content: bytes) -> Created | Exists:
        """Put an object if absent, and note an entry."""
        answer = self.objects.create(key, content)
        if isinstance(answer, Created) and key.startswith(LOG) and key.endswith(".json"):
            self._note(decode_entry(int(key[len(LOG) + 1 :].split(".")[0]), content))
        return answer

    def send_late(self, key: str, content: bytes) -> None:
        """Put an object at some later time."""
        self._late.append((key, content))

    def deliver_all(self) -> None:
        """Let everything arrive that is on its way."""
        while self._late:
            self.put(*self._late.pop())

    def _deliver_some(self) -> None:
        chance = self.scheduler.chance
        if self._late and chance.random() < 0.05:
            self.put(*self._late.pop(chance.randrange(len(self._late))))

    def _note(self, entry: Entry) -> None:
        known = self.history[entry.version] if entry.version < len(self.history) else None
        if known is not None and known.token == entry.token:
            return  # its own late copy, after a clean-up
        if entry.version == len(self.history):
            self.history.append(entry)
        else:
            self.zombies.add(entry.token)


class SimulatedObjects:
    """The store as one process sees it: each request is a step, and some get no answer."""

    def __init__(self, world: World, *, faults: float) -> None:
        self._world = world
        self._faults = faults

    @property
    def _chance(self) -> random.Random:
        return self._world.scheduler.chance

    def _step(self) -> None:
        self._world.scheduler.step()

    def create(self, key: str, content: bytes) -> Created | Exists:
        self._step()
        if key.startswith(LOG) and self._chance.random() < SLEEP_BEFORE_ENTRY:
            self._world.scheduler.sleep()
        if self._chance.random() >= self._faults:
            if self._chance.random() < self._faults:
                self._world.send_late(key, content)  # a copy of the request
            return self._world.put(key, content)
        fate = self._chance.randrange(3)
        if fate == 0:
            self._world.put(key, content)
        elif fate == 1:
            self._world.send_late(key, content)
        raise ObjectsUnreachableError("no reply")

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        self._step()
        return self._world.objects.replace(key, content, version)

    def fetch(self, key: str) -> Fetched | None:
        self._step()
        if self._chance.random() < self._faults / 3:
            raise ObjectsUnreachableError("no reply")
        return self._world.objects.fetch(key)

    def fetch_range(self, key: str, start: int, end: int) -> bytes | None:
        self._step()
        return self._world.objects.fetch_range(key, start, end)

    def confirm_absent(self, key: str) -> bool:
        self._step()
        return self._world.objects.confirm_absent(key)

    def list_after(self, prefix: str, after: str = "") -> Iterator[Listed]:
        self._step()
        if self._chance.random() < self._faults / 3:
            raise ObjectsUnreachableError("no reply")
        return iter(list(self._world.objects.list_after(prefix, after)))

    def head(self, key: str) -> Listed | None:
        self._step()
        return self._world.objects.head(key)

    def upload(self, key: str) -> Upload:
        return self._world.objects.upload(key)

    def delete(self, key: str) -> None:
        self._step()
        self._world.objects.delete(key)


class SimulatedLog:
    """A process's connection to the table."""

    boot: str | None = None
    is_shared = False
    place = "simulated"

    def __init__(self, world: World, *, faults: float = 0.0, requests_at_once: int = 1) -> None:
        self.requests_at_once = requests_at_once
        self._world = world
        self.objects = SimulatedObjects(world, faults=faults)

    def require_writable(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def housekeeping(self) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def note_reported(self, version: int) -> None:
        pass

    def reported_version(self) -> int:
        return -1

    def lost_names(self, boots: Collection[str | None]) -> bool:
        return False

    def note_whole(self) -> None:
        pass

    def set_aside(self, keys: Collection[str]) -> str:
        raise AssertionError("objects do not vanish")

    def sweep(self) -> None:
        pass
