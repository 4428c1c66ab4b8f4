"""Anybody who recovers the log, simulated: a broker, a reader or a writer of Spark, or an operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from pulsar_on_spark.ledger.journal.copy_protocol import (
    CheckIdentity,
    CopyReader,
    DirectorySynced,
    FenceAnswer,
    FenceFirst,
    FileRenamed,
    IdentityChecked,
    ReadAnswer,
    ReadEvent,
    ReadFrames,
    Rename,
    Renamed,
    Scan,
    ScanEnd,
    SyncDirectory,
)
from pulsar_on_spark.ledger.journal.log import Copy
from pulsar_on_spark.ledger.journal.messages import (
    CopyFailed,
    CopyFenced,
    CopyRead,
    CopySilent,
    FenceCopy,
    GiveUpPath,
    LogRecovered,
    ReadCopy,
    RecoveryStopped,
    StartRecovery,
    WriteBack,
)
from pulsar_on_spark.ledger.journal.object_protocol import (
    BirthChecked,
    CheckBirth,
    FencePut,
    FenceResult,
    Look,
    Looked,
    ObjectReader,
    ObjectReadEvent,
    ObjectsScanned,
    PutFence,
    ScanObjects,
)
from pulsar_on_spark.ledger.journal.recovery import Recovery
from pulsar_on_spark.model.ids import PathId
from tests.simulators.journal.object_disk import SimObject, SimObjects, SimStore
from tests.simulators.journal.processes import CoreEffect, CoreEvent, JournalProcess
from tests.simulators.journal.world import World

_Reader: TypeAlias = CopyReader | ObjectReader
_ReadEvent: TypeAlias = ReadEvent | ObjectReadEvent


class RecoveryProcess(JournalProcess):
    """Anybody who recovers the log."""

    def __init__(self, world: World, name: str, give_up: Iterable[PathId] = ()) -> None:
        """It begins with `start`; `give_up` are the paths that an operator gives up."""
        super().__init__(world, name)
        paths = list(world.paths)
        world.rng.shuffle(paths)
        self.core = Recovery(name, tuple(paths), read_limit=world.rng.choice((1, 2, 50)), window=4)
        self.readers: dict[Copy, CopyReader | ObjectReader] = {}
        self._scanned_under: dict[Copy, str | None] = {}
        self.stopped: str | None = None
        for path in give_up:
            self.core.handle(GiveUpPath(path))

    def start(self) -> None:
        """Begin."""
        self.feed(StartRecovery())

    def feed(self, event: CoreEvent) -> None:
        """Give the core an event and serve its effects."""
        self.serve(self.core.handle(event))  # type: ignore[arg-type]  # the recovery's own

    def time_out(self) -> None:
        """Let a path take too long: one that is read, or one that is written to."""
        candidates = list(self.readers)
        if candidates and self.world.random() < 0.7:
            copy = self.world.rng.choice(candidates)
            del self.readers[copy]
            self.feed(CopySilent(copy))
        elif self.open_files:
            self.feed(CopyFailed(self.world.rng.choice(list(self.open_files))))

    def serve_one(self, effect: CoreEffect) -> None:
        """The recovery's own effects."""
        world = self.world
        match effect:
            case FenceCopy(copy):
                self._ask(copy, FenceFirst())
            case ReadCopy(copy, start, limit):
                self._ask(copy, ReadFrames(start, limit))
            case WriteBack(copy, _, first, last):
                self.ask(copy, first, last, True)
            case LogRecovered():
                world.note(f"{self.name} is done")
            case RecoveryStopped(reason):
                self.stopped = reason
            case _:
                super().serve_one(effect)

    def _ask(self, copy: Copy, request: FenceFirst | ReadFrames) -> None:
        reader = self.readers.get(copy)
        if reader is None:
            is_store = isinstance(self.world.paths[copy.path], SimStore)
            reader = self.readers[copy] = ObjectReader() if is_store else CopyReader()
        if not self.world.send(self, self.step_reader_once, copy, reader, request, []):
            self.world.post(self, self.feed, CopySilent(copy))

    def step_reader_once(self, copy: Copy, reader: _Reader, event: _ReadEvent, done: list[bool]) -> None:
        """A duplicate of the event is ignored."""
        if not done:
            done.append(True)
            self.step_reader(copy, reader, event)

    def step_reader(self, copy: Copy, reader: _Reader, event: _ReadEvent) -> None:
        """Feed a reader; each of its disk operations happens at some later time."""
        if self.readers.get(copy) is not reader:
            return
        world = self.world
        for effect in reader.handle(event):  # type: ignore[arg-type]  # the reader's own
            match effect:
                case FenceAnswer(fenced, first, lac):
                    if fenced:
                        world.oracle.on_fenced(copy)
                    world.post(self, self.feed, CopyFenced(copy, fenced, first, lac))
                case ReadAnswer():
                    world.oracle.on_read(copy, effect, self._scanned_under.get(copy))
                    world.post(self, self.feed, CopyRead(copy, effect.start, effect.frames, effect.end))
                case PutFence(number):
                    done: list[bool] = []
                    if not world.send(None, self.put_fence, copy, reader, number, done):
                        failed = FencePut(FenceResult.FAILED)
                        world.post(self, self.step_reader_once, copy, reader, failed, done)
                case CheckBirth() | Look() | ScanObjects():
                    world.post(self, self.serve_object_reader, copy, reader, effect)
                case _:
                    world.post(self, self.serve_reader, copy, reader, effect)

    def put_fence(self, copy: Copy, reader: ObjectReader, number: int, done: list[bool]) -> None:
        """A request to create a fence arrives, even if its process is dead by now; the reply may get lost."""
        world = self.world
        file = world.paths[copy.path].files.get(copy)
        result = FenceResult.FAILED
        if isinstance(file, SimObjects) and not world.paths[copy.path].is_away:
            present = file.create(number, SimObject(self.name))
            if world.random() >= world.rename_fails:
                result = FenceResult.TAKEN if present.frames else FenceResult.DONE
        world.post(self, self.step_reader_once, copy, reader, FencePut(result), done)

    def serve_object_reader(self, copy: Copy, reader: ObjectReader, effect: CheckBirth | Look | ScanObjects) -> None:
        """Run a request of a reader of objects, other than a fence."""
        path = self.world.paths[copy.path]
        file = path.files.get(copy)
        present = file if isinstance(file, SimObjects) and path.usable else None
        outcome: ObjectReadEvent
        match effect:
            case CheckBirth():
                outcome = BirthChecked(present is not None and present.is_there)
            case Look():
                outcome = Looked(None, False, 0) if present is None else present.look()
            case ScanObjects(start, limit, end):
                outcome = ObjectsScanned(None, (), ScanEnd.DAMAGED)
                if present is not None:
                    outcome = present.scan(start, limit, end)
                    self._scanned_under[copy] = present.durable_name
                for facts in outcome.frames:
                    self.frames[facts.number] = self.world.oracle.files[copy].at(facts.number)
        self.step_reader(copy, reader, outcome)

    def serve_reader(
        self, copy: Copy, reader: CopyReader, effect: CheckIdentity | Rename | SyncDirectory | Scan
    ) -> None:
        """Run a disk operation of a reader."""
        path = self.world.paths[copy.path]
        outcome: ReadEvent
        match effect:
            case CheckIdentity():
                outcome = IdentityChecked(path.usable)
            case Rename():
                fails = self.world.random() < self.world.rename_fails
                outcome = FileRenamed(Renamed.FAILED if fails else path.rename(copy))
            case SyncDirectory():
                outcome = DirectorySynced(path.sync_directory(copy))
            case Scan(start, limit):
                outcome = path.scan(copy, start, limit)
                self._scanned_under[copy] = self.world.oracle.files[copy].durable_name
                for facts in outcome.frames:
                    self.frames[facts.number] = self.world.oracle.files[copy].at(facts.number)
        self.step_reader(copy, reader, outcome)
