"""The common part of simulated writers and recoverers: the files that they append to, and the register."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from pulsar_on_spark.ledger.journal.copy_protocol import (
    AppendEffect,
    AppendEvent,
    AppendFrames,
    Check,
    Checked,
    CopyAppender,
    IoFailed,
    Lost,
    Ok,
    Sync,
    Synced,
    Write,
    Written,
)
from pulsar_on_spark.ledger.journal.log import NO_FRAME, Copy
from pulsar_on_spark.ledger.journal.messages import (
    BeginFiles,
    CommitLog,
    CopyAcked,
    CopyFailed,
    CreateFile,
    FileCreated,
    FileNotCreated,
    LogCommitUnknown,
    LogRead,
    ReadLog,
    RecoveryEffect,
    RecoveryEvent,
    ReleaseFiles,
    WriterEffect,
    WriterEvent,
)
from pulsar_on_spark.ledger.journal.object_protocol import (
    AwaitInterval,
    CommitPolicy,
    GiveFrames,
    IntervalPassed,
    ObjectAppender,
    ObjectAppendEvent,
    ObjectConfirmed,
    ObjectExists,
    PutFailed,
    PutObject,
)
from tests.simulators.journal.disk import OPEN_NAME, SimFile, SimFrame
from tests.simulators.journal.object_disk import SimObject, SimObjects
from tests.simulators.journal.world import Actor, World

CoreEvent: TypeAlias = WriterEvent | RecoveryEvent
CoreEffect: TypeAlias = WriterEffect | RecoveryEffect


POLICY = CommitPolicy(interval_s=1.0, max_bytes=3, in_flight=3)
"""The rule for cutting objects; a frame counts as one byte."""


class _OpenObjects:
    """A file on an object store that a process appends to."""

    __slots__ = ("acked_to", "appender", "asked_to", "copy", "file")

    def __init__(self, file: SimObjects) -> None:
        self.copy = file.copy
        self.file = file
        self.appender: ObjectAppender | None = None
        self.asked_to = NO_FRAME
        self.acked_to = NO_FRAME

    def __repr__(self) -> str:
        return f"{self.copy}"


class _OpenFile:
    """A file that a process appends to: its core and its descriptor."""

    __slots__ = ("acked_to", "appender", "asked_to", "copy", "file", "generation")

    def __init__(self, file: SimFile, generation: int) -> None:
        self.copy = file.copy
        self.file = file
        self.generation = generation
        self.appender: CopyAppender | None = None
        self.asked_to = NO_FRAME
        self.acked_to = NO_FRAME

    def __repr__(self) -> str:
        return f"{self.copy}"


class JournalProcess(Actor):
    """The common part of writers and recoverers: the files that they write, and the register."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.frames: dict[int, SimFrame] = {}
        self.open_files: dict[Copy, _OpenFile | _OpenObjects] = {}

    def feed(self, event: CoreEvent) -> None:
        """Give the core an event and serve its effects."""
        raise NotImplementedError

    # -- files ---------------------------------------------------------------------------------------------------------

    def create(self, copy: Copy) -> None:
        """The path creates a file, or not."""
        file = self.world.create_file(copy)
        if file is None:
            self.world.post(self, self.feed, FileNotCreated(copy))
            return
        if isinstance(file, SimObjects):
            self.open_files[copy] = _OpenObjects(file)
        else:
            assert isinstance(file, SimFile), "there are two kinds"
            self.open_files[copy] = _OpenFile(file, self.world.paths[copy.path].generation)
        self.world.post(self, self.feed, FileCreated(copy))

    def begin(self, copies: tuple[Copy, ...], first: int) -> None:
        """Created files get their appenders."""
        for copy in copies:
            opened = self.open_files[copy]
            if isinstance(opened, _OpenObjects):
                opened.appender = ObjectAppender(first, self.name, POLICY)
            else:
                opened.appender = CopyAppender(first)

    def append(self, copy: Copy, first: int, last: int, sync: bool) -> None:
        """A file gets frames to append."""
        opened = self.open_files.get(copy)
        if isinstance(opened, _OpenObjects):
            self.step_objects(opened, GiveFrames(first, (1,) * (last - first + 1)))
        elif opened is not None:
            self.step_file(opened, AppendFrames(first, last, sync))

    def ask(self, copy: Copy, first: int, last: int, sync: bool) -> None:
        """Send frames to a file."""
        opened = self.open_files.get(copy)
        if opened is not None and sync:
            opened.asked_to = max(opened.asked_to, last)
        self.world.send(self, self.append, copy, first, last, sync)

    def step_file(self, opened: _OpenFile, event: AppendEvent) -> None:
        """Feed an appender; each of its disk operations happens at some later time."""
        assert opened.appender is not None, "a file is begun before it is appended to"
        for effect in opened.appender.handle(event):
            self._serve_file(opened, effect)

    def _serve_file(self, opened: _OpenFile, effect: AppendEffect) -> None:
        world = self.world
        match effect:
            case Write(first, last):
                world.post(self, self.write, opened, first, last)
            case Sync():
                world.post(self, self.sync, opened, len(opened.file.frames))
            case Check():
                world.post(self, self.check, opened)
            case Ok(watermark):
                world.oracle.on_ok(opened.copy, watermark)
                world.send(self, self.acked_by, opened, watermark)
            case Lost():
                world.post(self, self.feed, CopyFailed(opened.copy))

    def step_objects(self, opened: _OpenObjects, event: ObjectAppendEvent) -> None:
        """Feed an appender of objects; requests and replies are on their way for some time."""
        assert opened.appender is not None, "a file is begun before it is appended to"
        world = self.world
        for effect in opened.appender.handle(event):
            match effect:
                case PutObject(number, first, last, confirmed):
                    frames = tuple(self.frames[each] for each in range(first, last + 1))
                    given = SimObject(self.name, frames, confirmed)
                    if not world.send(None, self.put, opened, number, given):
                        world.post(self, self.step_objects, opened, PutFailed(number))
                case AwaitInterval():
                    world.post(self, self.step_objects, opened, IntervalPassed())
                case Ok(watermark):
                    world.oracle.on_ok(opened.copy, watermark)
                    world.send(self, self.acked_by, opened, watermark)
                case Lost():
                    world.post(self, self.feed, CopyFailed(opened.copy))

    def put(self, opened: _OpenObjects, number: int, given: SimObject) -> None:
        """A request to create an object arrives, even if its process is dead by now; the reply may get lost."""
        event: ObjectAppendEvent = PutFailed(number)
        if not self.world.paths[opened.copy.path].is_away:
            present = opened.file.create(number, given)
            if self.world.random() >= self.world.loss:
                event = ObjectConfirmed(number) if present is given else ObjectExists(number, present.token)
        self.world.post(self, self.step_objects, opened, event)

    def acked_by(self, opened: _OpenFile | _OpenObjects, watermark: int) -> None:
        """A path's answer arrives."""
        opened.acked_to = max(opened.acked_to, watermark)
        self.feed(CopyAcked(opened.copy, watermark))

    def silent(self) -> list[Copy]:
        """The files that have not answered all that they were asked for."""
        return [copy for copy, opened in self.open_files.items() if opened.acked_to < opened.asked_to]

    def write(self, opened: _OpenFile, first: int, last: int) -> None:
        """The write system call."""
        if not self._is_alive(opened):
            self.step_file(opened, IoFailed())
            return
        header = first if opened.file.first is None else opened.file.first
        opened.file.append([self.frames[number] for number in range(first, last + 1)], header)
        self.step_file(opened, Written())

    def sync(self, opened: _OpenFile, count: int) -> None:
        """The fdatasync; it covers what was written before it began."""
        if not self._is_alive(opened):
            self.step_file(opened, IoFailed())
            return
        if self.world.random() < self.world.io_error:
            opened.file.dropped = True
            self.step_file(opened, IoFailed())
            return
        linked = self.world.paths[opened.copy.path].files.get(opened.copy) is opened.file
        opened.file.sync(count, counts=linked)
        self.step_file(opened, Synced())

    def check(self, opened: _OpenFile) -> None:
        """Look at the name: is it the file that is held open?"""
        path = self.world.paths[opened.copy.path]
        same = path.files.get(opened.copy) is opened.file and opened.file.name == OPEN_NAME and path.usable
        self.step_file(opened, Checked(same))

    def _is_alive(self, opened: _OpenFile) -> bool:
        path = self.world.paths[opened.copy.path]
        return path.generation == opened.generation and not path.is_away

    # -- the register --------------------------------------------------------------------------------------------------

    def commit(self, commit: CommitLog) -> None:
        """The commit arrives at the register."""
        world, register = self.world, self.world.register
        if world.random() < world.profile.unknown / 2:
            world.post(None, self.late_commit, commit)
            world.post(self, self.feed, LogCommitUnknown())
            return
        old = register.log
        result = register.commit_log(commit)
        if register.log is not old and register.log is not None:
            world.oracle.on_log_commit(old, register.log)
        unknown = result is None or world.random() < world.profile.unknown / 2
        world.post(self, self.feed, LogCommitUnknown() if unknown else result)

    def late_commit(self, commit: CommitLog) -> None:
        """A commit that was reported as unknown arrives after all."""
        old = self.world.register.log
        self.world.register.commit_log(commit)
        if self.world.register.log is not old and self.world.register.log is not None:
            self.world.oracle.on_log_commit(old, self.world.register.log)

    def read_log(self) -> None:
        """The register is read now, and the answer comes later."""
        register = self.world.register
        self.world.post(self, self.feed, LogRead(register.log, register.log_version))

    def serve(self, effects: Iterable[CoreEffect]) -> None:
        """Serve a core's effects."""
        for effect in effects:
            self.serve_one(effect)

    def serve_one(self, effect: CoreEffect) -> None:
        """Effects that both cores have."""
        world = self.world
        match effect:
            case CreateFile(copy):
                if not world.send(self, self.create_once, copy):
                    world.post(self, self.feed, FileNotCreated(copy))
            case BeginFiles(copies, first):
                self.begin(copies, first)
            case CommitLog():
                world.post(None, self.commit, effect)
            case ReadLog():
                world.post(None, self.read_log)
            case ReleaseFiles(copies):
                for copy in copies:
                    self.open_files.pop(copy, None)
            case _:
                raise AssertionError(f"no actor serves {effect}")

    def create_once(self, copy: Copy) -> None:
        """A duplicate of the request finds the file there."""
        if copy not in self.world.oracle.files:
            self.create(copy)
