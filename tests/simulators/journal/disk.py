"""Simulated storage paths: files with synced and unsynced frames, names that a fence changes, disks that get lost."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Protocol

from pulsar_on_spark.ledger.journal.copy_protocol import Renamed, ScanEnd, Scanned
from pulsar_on_spark.ledger.journal.log import NO_FRAME, Copy, FrameFacts
from pulsar_on_spark.ledger.journal.sealing import EntryRange
from pulsar_on_spark.model.ids import PathId

OPEN_NAME = "frames.open"
FENCED_NAME = "frames.fenced"


@dataclass(frozen=True, slots=True)
class SimFrame:
    """A frame and its content.

    Attributes:
        facts: Its header.
        content: Unique in a run: stands for the bytes.
        entries: Its directory.
        cursors: Its cursor records: subscription and the record's counter.
    """

    facts: FrameFacts
    content: int
    entries: tuple[EntryRange, ...] = ()
    cursors: tuple[tuple[str, int], ...] = ()


class JournalFile(Protocol):
    """What the checks ask of a journal file of either kind; `SimFile` describes it."""

    copy: Copy
    damaged_at: int | None
    damaged_header: bool
    holed: bool
    is_lost: bool

    @property
    def is_there(self) -> bool: ...

    @property
    def first(self) -> int | None: ...

    @property
    def frames(self) -> list[SimFrame]: ...

    @property
    def ever_durable(self) -> int: ...

    @property
    def durable_name(self) -> str | None: ...

    def at(self, number: int) -> SimFrame: ...

    def good_end(self) -> int | None: ...

    def ends_badly(self) -> bool: ...

    def is_sound(self) -> bool: ...


@dataclass(slots=True, eq=False)
class SimFile:
    """A journal file. `ever_durable` is for the checks only: it stays when a disk loses the file.

    At its end a crash may leave a short frame (`torn`), or one of full length whose content has holes (`holed`). After
    a failed fdatasync the kernel has dropped what was not durable: later ones succeed and make nothing durable
    (`dropped`), and a crash shows it.
    """

    copy: Copy
    name: str | None = OPEN_NAME
    durable_name: str | None = OPEN_NAME
    first: int | None = None
    frames: list[SimFrame] = field(default_factory=list)
    synced: int = 0
    dropped: bool = False
    torn: bool = False
    holed: bool = False
    damaged_at: int | None = None
    damaged_header: bool = False
    ever_durable: int = NO_FRAME
    is_lost: bool = False

    @property
    def is_there(self) -> bool:
        """True if it has a name on its path."""
        return self.name is not None and not self.is_lost

    def append(self, frames: list[SimFrame], first: int) -> None:
        """Write frames behind the last; the header, with `first`, goes in front of the first ones."""
        if self.first is None:
            self.first = first
        assert frames[0].facts.number == self.first + len(self.frames), "a file is a prefix without holes"
        self.frames += frames

    def at(self, number: int) -> SimFrame:
        """The frame of this number."""
        return self.frames[number - (self.first or 0)]

    def sync(self, count: int, *, counts: bool = True) -> None:
        """Make the first `count` frames durable; in a file that has lost its name that `counts` for nothing."""
        if count > self.synced and not self.dropped:
            self.synced = count
            assert self.first is not None
            if counts:
                self.ever_durable = max(self.ever_durable, self.first + count - 1)

    def crash(self, rng: random.Random) -> None:
        """Lose some of the unsynced frames, perhaps within one; and an unsynced rename."""
        kept = rng.randint(self.synced, len(self.frames))
        if kept < len(self.frames):
            self.torn = rng.random() < 0.5
            self.holed = not self.torn and rng.random() < 0.2
            del self.frames[kept:]
        if not self.frames and not self.torn and not self.holed:
            self.first = None
        self.name = self.durable_name

    def scan(self, start: int, limit: int) -> Scanned:
        """Return the frames that a scan of the file finds; a bad frame hides all after it."""
        whole, end = len(self.frames), ScanEnd.TORN if self.torn else ScanEnd.CLEAN
        if self.damaged_at is not None and self.damaged_at < whole:
            last = self.damaged_at == whole - 1 and not self.torn and not self.holed
            whole, end = self.damaged_at, ScanEnd.TORN if last and self.damaged_header else ScanEnd.DAMAGED
        elif self.holed:
            end = ScanEnd.DAMAGED
        lac = max((frame.facts.lac for frame in self.frames[:whole]), default=NO_FRAME)
        if self.first is None:
            return Scanned(None, (), end, lac)
        begin = max(start - self.first, 0)
        if start < self.first:
            return Scanned(self.first, (), end, lac)
        facts = tuple(frame.facts for frame in self.frames[begin : min(begin + limit, whole)])
        return Scanned(self.first, facts, ScanEnd.LIMIT if begin + limit < whole else end, lac)

    def good_end(self) -> int | None:
        """Behind the last frame that a reader gets by scanning from the front; None if there is no header yet."""
        if self.first is None:
            return None
        whole = len(self.frames) if self.damaged_at is None else min(self.damaged_at, len(self.frames))
        return self.first + whole

    def ends_badly(self) -> bool:
        """True if a bad frame of full length follows the last good one."""
        return self.holed or (self.damaged_at is not None and self.damaged_at < len(self.frames))

    def is_sound(self) -> bool:
        """True if the file can be read to its end, and ends between two frames."""
        return not (self.ends_badly() or self.torn)


@dataclass(slots=True, eq=False)
class SimPath:
    """A storage path in a directory. `generation` counts its crashes: an open file of an earlier one is dead."""

    path_id: PathId
    files: dict[Copy, JournalFile] = field(default_factory=dict)
    has_cookie: bool = True
    is_away: bool = False
    generation: int = 0

    @property
    def usable(self) -> bool:
        """It answers, and is the path that it should be."""
        return self.has_cookie and not self.is_away

    def crash(self, rng: random.Random) -> None:
        """Power cut of its machine: unsynced bytes are gone, open files are dead."""
        self.generation += 1
        for file in self.files.values():
            assert isinstance(file, SimFile), "a disk has files"
            file.crash(rng)

    def replace_by_empty(self, *, with_cookie: bool, files_stay_open: bool) -> None:
        """An empty disk is in its place; files that are open on the old one may go on for ever."""
        self.generation += not files_stay_open
        for file in self.files.values():
            file.is_lost = True
        self.files.clear()
        self.has_cookie = with_cookie

    def rename(self, copy: Copy) -> Renamed:
        """The fence of one file."""
        file = self._local(copy)
        if self.is_away:
            return Renamed.FAILED
        if file is None or file.name is None:
            return Renamed.MISSING
        if file.name == FENCED_NAME:
            return Renamed.ALREADY
        file.name = FENCED_NAME
        return Renamed.DONE

    def sync_directory(self, copy: Copy) -> bool:
        """Make the file's name durable; whether it is the fenced one."""
        file = self._local(copy)
        if self.is_away or file is None:
            return False
        file.durable_name = file.name
        return file.name == FENCED_NAME

    def scan(self, copy: Copy, start: int, limit: int) -> Scanned:
        """Scan the file under either name."""
        file = self._local(copy)
        if not self.usable or file is None or file.name is None:
            return Scanned(None, (), ScanEnd.DAMAGED)
        return file.scan(start, limit)

    def _local(self, copy: Copy) -> SimFile | None:
        file = self.files.get(copy)
        assert file is None or isinstance(file, SimFile), "a disk has files"
        return file

    def new_file(self, copy: Copy) -> JournalFile:
        """Create an empty file."""
        return SimFile(copy)

    def delete_next(self, copy: Copy) -> bool:
        """Unlink the file; open descriptors go on. Returns whether there was something to delete."""
        file = self.files.pop(copy, None)
        if isinstance(file, SimFile):
            file.name = file.durable_name = None
        return file is not None
