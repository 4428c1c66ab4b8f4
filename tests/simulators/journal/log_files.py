"""The open files of a simulated log reader, and its walk through the log: reading another copy is an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pulsar_on_spark.ledger.journal.log import Copy
from pulsar_on_spark.ledger.journal.tail import LogWalk
from tests.simulators.journal.disk import JournalFile, SimFrame
from tests.simulators.journal.object_disk import SimObjects
from tests.simulators.journal.register import MainView
from tests.simulators.journal.world import Actor


class LogFiles:
    """The open files of a log reader, and its walk through the log."""

    def __init__(self, actor: Actor, begin: int, spread: int) -> None:
        """Nothing is open."""
        self.world = actor.world
        self.walk = LogWalk(begin, spread)
        self.found_dead = False
        self.failures = 0
        self._actor = actor
        self._files: dict[Copy, tuple[JournalFile, int]] = {}

    def main_read(self, main: MainView) -> None:
        """Take what main says now."""
        self.walk.main_read(main.record, main.sealed_before)
        for copy in self.walk.passed_files():
            del self._files[copy]

    def open(self, copy: Copy) -> None:
        """Open a file under either name."""
        path = self.world.paths[copy.path]
        file = path.files.get(copy)
        is_there = file is not None and file.is_there and path.usable
        if file is not None and is_there:
            self._files[copy] = (file, path.generation)
        else:
            self.failures += 1
        self.walk.opened(copy, is_there)

    def has_open(self, copies: Sequence[Copy]) -> bool:
        """True if one of these files is open."""
        return any(copy in self._files for copy in copies)

    def forget_failures(self) -> None:
        """Let files be tried again."""
        self.failures = 0
        self.walk.forget_failures()

    def read(self, take: Callable[[SimFrame], None], done: Callable[[], None], every: bool = False) -> None:
        """Take the frames that are there now, copy by copy; each look into another copy is an event."""
        walk = self.walk
        if walk.copy is not None:
            self._take_all(walk.copy, take)
        is_bad = walk.copy in self._files and self._files[walk.copy][0].ends_badly()
        others = tuple(walk.others(every=every or is_bad))
        self.world.post(self._actor, self.look, others, take, done, every)

    def look(
        self, copies: Sequence[Copy], take: Callable[[SimFrame], None], done: Callable[[], None], every: bool
    ) -> None:
        """Look for the next frame in one of these copies."""
        walk = self.walk
        if not copies:
            walk.found_none()
            done()
            return
        copy, before = copies[0], walk.next
        if not walk.has_tried(copy):
            self.open(copy)
        end = self._good_end(copy)
        first = None if end is None else self._files[copy][0].first
        if end is not None and first is not None and first <= before <= end:
            walk.use(copy, first)
            self._take_all(copy, take)
        if walk.next > before:
            self.world.post(self._actor, self.read, take, done, every)
        else:
            self.world.post(self._actor, self.look, copies[1:], take, done, every)

    def _take_all(self, copy: Copy, take: Callable[[SimFrame], None]) -> None:
        walk = self.walk
        while walk.copy == copy and (end := self._good_end(copy)) is not None and walk.next < end:
            frame = self._files[copy][0].at(walk.next)
            walk.took(frame.facts.number, frame.facts.lac)
            take(frame)

    def _good_end(self, copy: Copy) -> int | None:
        """Behind the last frame that can be read in a file; None if none can be. A dead descriptor is given up."""
        if copy not in self._files:
            return None
        file, generation = self._files[copy]
        path = self.world.paths[copy.path]
        is_deleted = isinstance(file, SimObjects) and not file.is_there  # a deleted local file can be read while open
        if path.generation != generation or path.is_away or is_deleted:
            del self._files[copy]
            self.found_dead = True
            self.failures += 1
            self.walk.on_copy_lost(copy)
            return None
        return file.good_end()
