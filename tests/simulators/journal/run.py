"""A run: a writer, recoverers, and everything that goes wrong, under one seed; then all heals and must end well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from tests.simulators.journal.housekeeper import Housekeeper, Task
from tests.simulators.journal.object_disk import SimObjects
from tests.simulators.journal.profiles import NORMAL
from tests.simulators.journal.recovery_process import RecoveryProcess
from tests.simulators.journal.settling import Cast, Settling
from tests.simulators.journal.tail_reader import TailProcess
from tests.simulators.journal.world import Profile, World
from tests.simulators.journal.writer_process import LEDGERS, WriterProcess

Action: TypeAlias = Callable[[], None]

MAX_RECOVERIES = 5
MAX_HOUSEKEEPERS = 80
TASKS: tuple[Task, ...] = ("seal", "seal", "seal", "end", "trim", "trim", "open", "close")


class Run:
    """A world with its actors and the actions that may befall them."""

    def __init__(self, profile: Profile, seed: int, *, traced: bool = False) -> None:
        """The same profile and seed give the same run, step by step."""
        self.world = World(profile, seed, LEDGERS, traced=traced)
        self.writer = WriterProcess(self.world, "w", profile)
        self.recoveries: list[RecoveryProcess] = []
        self.housekeepers: list[Housekeeper] = []
        self.readers = [self._reader("t0"), self._reader("t1")]
        self.cast = Cast(self.world, self.writer, self.recoveries, self.housekeepers, self.readers)
        self.events: Counter[str] = Counter()
        weights = NORMAL | dict(profile.weights)
        self._actions: list[Action] = [
            action for name, weight in weights.items() for action in [getattr(self, f"_{name}")] * weight
        ]

    def go(self) -> None:
        """Run to the end.

        Raises:
            ViolationError: an invariant does not hold.
        """
        world, actions, act = self.world, self._actions, self.world.profile.act
        self.writer.start()
        for _ in range(world.profile.steps):
            if world.random() < act or not world.pool:
                action = actions[int(world.random() * len(actions))]
                if world.trace is not None:
                    world.note(action.__name__)
                world.steps += 1
                action()
            else:
                world.deliver()
        Settling(self.cast, self.events).run()

    def summary(self) -> Counter[str]:
        """Return counts of the run's events, which show whether runs reach what they are for."""
        events = Counter(self.events)
        log = self.world.register.log
        if log is not None:
            events[log.state.name] += 1
            events["fragments"] += len(log.fragments)
            events["shrunk"] += any(len(f.copies) < log.write_quorum for f in log.fragments)
            events["recovered above the LAC"] += any(copy.file[:1] in "rl" for f in log.fragments for copy in f.copies)
        main = self.world.register.main
        events["trimmed runs"] += main.trimmed_before > 0
        events["ended runs"] += log is not None and not main.unended
        events["pruned runs"] += log is not None and main.is_gone
        events["sealed"] += sum(main.sealed.values())
        events["read"] += sum(sum(reader.had.values()) for reader in self.readers)
        events["passes that saw a hole"] += sum(reader.holes for reader in self.readers)
        events["acknowledged"] += self.world.oracle.acked + 1
        events["fenced"] += self.writer.is_fenced
        events["stopped recoveries"] += sum(recovery.stopped is not None for recovery in self.recoveries)
        return events

    # -- actions -------------------------------------------------------------------------------------------------------

    def _add(self) -> None:
        if self.writer.alive and self.writer.held is None:
            self.writer.add()

    def _idle(self) -> None:
        if self.writer.alive and self.writer.held is None:
            self.writer.idle()

    def _offer(self) -> None:
        if self.writer.alive and self.writer.held is None:
            self.writer.offer()

    def _withdraw(self) -> None:
        if self.writer.alive and self.writer.held is None:
            self.writer.withdraw()

    def _time_out_writer(self) -> None:
        if self.writer.alive and self.writer.held is None:
            self.writer.time_out()

    def _close(self) -> None:
        if self.writer.alive and self.writer.held is None and self.world.random() < 0.3:
            self.writer.close()

    def _pause_writer(self) -> None:
        self.writer.pause()

    def _wake_writer(self) -> None:
        self.writer.wake()

    def _kill_writer(self) -> None:
        if self.world.random() < 0.3:
            self.writer.kill()

    def _recover(self) -> None:
        if len(self.recoveries) < MAX_RECOVERIES:
            self.recoveries.append(RecoveryProcess(self.world, f"r{len(self.recoveries)}"))
            self.recoveries[-1].start()

    def _reader(self, name: str) -> TailProcess:
        """Return a reader; if no path is ever away, even one that may skip losses must never do so."""
        fail_on_loss = not (self.world.profile.is_healthy and self.world.random() < 0.5)
        return TailProcess(self.world, name, fail_on_loss=fail_on_loss)

    def _any_recovery(self) -> RecoveryProcess | None:
        return self.world.rng.choice(self.recoveries) if self.recoveries else None

    def _time_out_recovery(self) -> None:
        recovery = self._any_recovery()
        if recovery is not None and recovery.alive and recovery.held is None:
            recovery.time_out()

    def _pause_recovery(self) -> None:
        if (recovery := self._any_recovery()) is not None:
            recovery.pause()

    def _wake_recovery(self) -> None:
        if (recovery := self._any_recovery()) is not None:
            recovery.wake()

    def _kill_recovery(self) -> None:
        if (recovery := self._any_recovery()) is not None:
            recovery.kill()

    def _housekeep(self) -> None:
        if len(self.housekeepers) < MAX_HOUSEKEEPERS:
            task = TASKS[int(self.world.random() * len(TASKS))]
            name = f"h{len(self.housekeepers)}-{task}"
            self.housekeepers.append(Housekeeper(self.world, name, task, self.writer))
            self.housekeepers[-1].start()

    def _pause_housekeeper(self) -> None:
        if self.housekeepers:
            self.world.rng.choice(self.housekeepers).pause()

    def _wake_housekeeper(self) -> None:
        if self.housekeepers:
            self.world.rng.choice(self.housekeepers).wake()

    def _snapshot(self) -> None:
        if self.writer.alive and self.writer.held is None:
            self.writer.snapshot()

    def _read(self) -> None:
        self.world.rng.choice(self.readers).start()

    def _new_reader(self) -> None:
        """Return a reader with no open file that starts at the first entry."""
        index = int(self.world.random() * len(self.readers))
        self.readers[index].kill()
        self.readers[index] = self._reader(f"t{self.world.steps}")
        self.readers[index].start()

    def _pause_reader(self) -> None:
        self.world.rng.choice(self.readers).pause()

    def _wake_reader(self) -> None:
        self.world.rng.choice(self.readers).wake()

    def _away(self) -> None:
        self.world.faults += 1
        self.world.rng.choice(list(self.world.paths.values())).is_away = True

    def _back(self) -> None:
        self.world.faults += 1
        self.world.rng.choice(list(self.world.paths.values())).is_away = False

    def _crash(self) -> None:
        self.world.faults += 1
        self.world.rng.choice(list(self.world.paths.values())).crash(self.world.rng)

    def _may_lose(self) -> bool:
        """Return how many disks may be lost, by the ack quorum: one fewer than copies of an acknowledged frame."""
        return self.world.losses < self.world.profile.ack_quorum - 1

    def _empty(self) -> None:
        rng = self.world.rng
        if self._may_lose():
            self.world.losses += 1
            path = rng.choice(list(self.world.paths.values()))
            path.replace_by_empty(with_cookie=rng.random() < 0.5, files_stay_open=rng.random() < 0.5)

    def _damage(self) -> None:
        rng = self.world.rng
        files = [file for path in self.world.paths.values() for file in path.files.values() if file.frames]
        if self._may_lose() and files:
            self.world.losses += 1
            file = rng.choice(files)
            file.damaged_at = rng.choice((len(file.frames) - 1, rng.randrange(len(file.frames))))
            file.damaged_header = rng.random() < 0.5

    def _rob(self) -> None:
        """Delete an object of a journal, as an operator or a rule of the bucket may."""
        files = [file for path in self.world.paths.values() for file in path.files.values()]
        stored = [file for file in files if isinstance(file, SimObjects) and file.is_there]
        if stored and self.world.losses < max(1, self.world.profile.ack_quorum - 1):
            self.world.losses += self.world.rng.choice(stored).rob()

    def _power_cut(self) -> None:
        if self.world.random() < 0.2:
            self.world.faults += 1
            for actor in self.cast.processes:
                actor.kill()
            for path in self.world.paths.values():
                path.crash(self.world.rng)
