"""The good end of a run: everything heals, zombies wake, and what was promised must come true.

L1  a log whose copies are there is recovered, and comes to rest    L5  a closed log is sealed, ended, trimmed and gone
L2  a reader sees no hole where nothing is away (`tail_reader`)     L6  a log of which all is given up is closed
L3  readers have every acknowledged entry, once and in order       L7  who may go on without what is lost has the rest
L4  a writer that lives acknowledges what it took
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pulsar_on_spark.ledger.journal.log import NO_FRAME, Copy, FrameKind, LogRecord, LogState, unended_fragments
from pulsar_on_spark.ledger.journal.messages import CopyFailed, SpareOffered
from tests.simulators.journal.housekeeper import Housekeeper, Task
from tests.simulators.journal.object_disk import SimObjects
from tests.simulators.journal.oracle import ViolationError
from tests.simulators.journal.recovery_process import RecoveryProcess
from tests.simulators.journal.tail_reader import TailProcess
from tests.simulators.journal.world import Actor, World
from tests.simulators.journal.writer_process import WriterProcess

MAX_SETTLING_STEPS = 4000
SETTLING_ROUNDS = 8
"""So often what was lost is asked for again."""


@dataclass(frozen=True)
class Cast:
    """A world and those who act in it; the lists grow."""

    world: World
    writer: WriterProcess
    recoveries: list[RecoveryProcess]
    housekeepers: list[Housekeeper]
    readers: list[TailProcess]

    @property
    def processes(self) -> list[Actor]:
        """All of them."""
        return [self.writer, *self.recoveries, *self.housekeepers, *self.readers]


class Settling:
    """The end of one run; `events` counts what happened in it."""

    def __init__(self, cast: Cast, events: Counter[str]) -> None:
        self.cast = cast
        self.events = events
        self.world, self.writer, self.readers = cast.world, cast.writer, cast.readers
        self.recoveries, self.housekeepers = cast.recoveries, cast.housekeepers

    def run(self) -> None:
        """Everything heals, zombies wake, and all must come to a good end."""
        world = self.world
        world.loss = world.rename_fails = world.io_error = 0.0
        world.faults += 1
        for path in world.paths.values():
            path.is_away = False
        for actor in self.cast.processes:
            actor.wake()
        self._drain()
        log = world.register.log
        if log is None:
            return
        if log.state is LogState.OPEN:
            self._check_writer()
        if world.register.main.record.state is not LogState.CLOSED and not self._recovered():
            return
        for reader in self.readers:
            self._check_reader(reader)
        self._check_reader(TailProcess(world, "t-last"))
        if self._is_robbed():
            return
        if world.random() < 0.3:
            self._check_end()
        elif world.random() < 0.5:
            self._check_loss()

    def _check_writer(self) -> None:
        """A writer that lives, with enough paths, acknowledges what it took, and shows it when it is idle."""
        world, writer = self.world, self.writer
        usable = [path for path in world.paths.values() if path.has_cookie]
        if not writer.alive or len(usable) < world.profile.ack_quorum:
            return
        added = False
        for _ in range(SETTLING_ROUNDS):
            for copy in writer.silent():
                writer.feed(CopyFailed(copy))
            for path in usable:
                writer.feed(SpareOffered(path.path_id))
            self._drain()
            if not added and writer.core.can_add:
                added = True
                writer.add()  # a frame that no process waits for may be lost: one more shows it
            elif world.oracle.acked >= self._last_awaited() and not writer.silent():
                break
        if writer.core.is_over:
            return  # fenced, closed or abandoned meanwhile
        if world.oracle.acked < self._last_awaited():
            raise ViolationError(
                f"L4: frame {self._last_awaited()} was sent, nothing is away, and the LAC is {world.oracle.acked}"
            )
        writer.idle()
        self._drain()
        self._check_reader(TailProcess(world, "t-idle"))

    def _last_awaited(self) -> int:
        """The last frame that somebody waits for."""
        sent = self.world.oracle.sent
        return max((f.facts.number for f in sent if f.facts.kind is not FrameKind.LAC), default=NO_FRAME)

    def _recovered(self) -> bool:
        """True if a recovery now closes the log; a refusal is checked to be justified."""
        world = self.world
        self.recoveries.append(RecoveryProcess(world, "last"))
        self.recoveries[-1].start()
        self._drain()
        log = world.register.main.record
        if log.state is LogState.CLOSED:
            return True
        is_lost = world.losses or any(file.holed for path in world.paths.values() for file in path.files.values())
        if not is_lost or self._is_decidable(log):
            raise ViolationError(f"L1: all is there, and the recovery does not close: {self.recoveries[-1].stopped}")
        self._check_giving_up()
        return False

    def _check_giving_up(self) -> None:
        """Check that giving up all paths closes the log, without the frames that no copy has left (see `Oracle`)."""
        world = self.world
        if sum(path.has_cookie for path in world.paths.values()) < world.profile.ack_quorum:
            return
        self.recoveries.append(RecoveryProcess(world, "last-resort", tuple(world.paths)))
        self.recoveries[-1].start()
        self._drain()
        if world.register.main.record.state is not LogState.CLOSED:
            raise ViolationError(f"L6: all paths are given up, and it does not close: {self.recoveries[-1].stopped}")
        self.events["given up"] += 1
        if self._is_robbed():
            return
        for reader in (*self.readers, TailProcess(world, "t-given-up", fail_on_loss=False)):
            reader.start()  # what one has had may be more than is left
        self._drain()
        self._check_lossy_reader(reader)

    def _is_decidable(self, log: LogRecord) -> bool:
        """True if enough sound copies are left to prove that a frame which none of them has was never acknowledged."""
        paths = self.world.paths
        writable = sum(path.has_cookie for path in paths.values())

        def is_sound(copy: Copy) -> bool:
            file = paths[copy.path].files.get(copy)
            return file is not None and paths[copy.path].has_cookie and file.is_sound()

        enough = all(
            sum(map(is_sound, fragment.copies)) >= len(fragment.copies) - log.ack_quorum + 1
            for fragment in unended_fragments(log)
        )
        return enough and writable >= log.ack_quorum

    def _check_reader(self, reader: TailProcess) -> None:
        """Check that the reader gets every acknowledged entry, or all of a closed log, once and in order."""
        oracle = self.world.oracle
        if self._is_robbed():
            return
        for _ in range(SETTLING_ROUNDS):
            reader.start()
            self._drain()
            if reader.failed is None:
                break
        for ledger, numbers in oracle.entries.items():
            readable = sum(number <= oracle.readable() for number in numbers)
            if reader.alive and reader.had[ledger] != readable:
                raise ViolationError(
                    f"L3: ledger {ledger} has {readable} entries, {reader.name} got {reader.had[ledger]}: "
                    f"{reader.failed}"
                )

    def _check_loss(self) -> None:
        """Damage a frame in every copy: a reader that may skip it gets all others, and no other reader passes it."""
        world, record = self.world, self.world.register.main.record
        end = world.oracle.readable() + 1
        begin = max(world.register.main.trimmed_before, world.register.main.sealed_before)
        if begin >= end:
            return
        number = begin + int(world.random() * (end - begin))
        holding = world.oracle.holding(record, number)
        assert holding is not None, "what is not trimmed is somewhere"
        for copy in holding.copies:
            file = world.oracle.files[copy]
            if file.first is not None and file.first <= number:
                bad = number - file.first
                file.damaged_at = bad if file.damaged_at is None else min(bad, file.damaged_at)
        world.losses += 1
        self.events["lost in all copies"] += 1
        TailProcess(world, "t-strict").start()
        self._drain()
        self._check_lossy_reader(TailProcess(world, "t-lossy", fail_on_loss=False))

    def _is_robbed(self) -> bool:
        """True if an object was deleted that readers and sealers need."""
        files = self.world.oracle.files.values()
        return any(isinstance(file, SimObjects) and file.is_robbed for file in files)

    def _check_lossy_reader(self, reader: TailProcess) -> None:
        """Check that a reader that skips lost entries gets every other one."""
        oracle, main = self.world.oracle, self.world.register.main
        for _ in range(SETTLING_ROUNDS):
            reader.start()
            self._drain()
            if reader.failed is None:
                break
        for ledger, numbers in oracle.entries.items():
            readable = [entry for entry, number in enumerate(numbers) if number <= oracle.readable()]
            sealed = main.sealed.get(ledger, 0)
            left = [entry for entry in readable if entry < sealed or not oracle.is_lost(main.record, numbers[entry])]
            if left and reader.had[ledger] <= left[-1]:
                raise ViolationError(
                    f"L7: entry {ledger}:{left[-1]} is not lost, {reader.name} came to {reader.had[ledger]}: "
                    f"{reader.failed}"
                )
        self.events["skipped"] += reader.skipped

    def _check_end(self) -> None:
        """A closed log is sealed, ends, is trimmed and goes; readers have everything still."""
        world = self.world
        tasks: tuple[Task, ...] = ("seal", "end", "trim")
        for number in range(len(tasks) * (SETTLING_ROUNDS + len(world.register.main.opened))):
            if world.register.main.is_gone:
                break
            self.housekeepers.append(Housekeeper(world, f"last{number}", tasks[number % len(tasks)], self.writer))
            self.housekeepers[-1].start()
            self._drain()
        if not world.register.main.is_gone:
            raise ViolationError(f"L5: nothing is away, and the closed log does not go: {world.register.main}")
        for reader in (*self.readers, TailProcess(world, "t-end")):
            self._check_reader(reader)

    def _drain(self) -> None:
        limit = self.world.steps + MAX_SETTLING_STEPS
        while self.world.pool:
            self.world.deliver()
            if self.world.steps > limit:
                raise ViolationError("L1: it does not come to rest")
