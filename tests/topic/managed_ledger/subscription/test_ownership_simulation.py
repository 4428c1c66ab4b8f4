"""Consumers that join, leave, die, pause, wake as zombies and restart, under a seeded scheduler; and broken rules.

Each consumer process is a generator that does what Spark's micro-batch loop does with the rules of `ownership`, and
yields wherever another process may come between. What Spark keeps (offset log, commit log, the sink's batches) is
in `Checkpoint` and survives the process.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest

from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.records import SlotOwner, SubscriptionRecord
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.topic.managed_ledger.subscription import ownership, positions
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import TopicOffset
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import Fenced, Refuse, Situation, Standby, Take
from pulsar_on_spark.topic.managed_ledger.subscription.slots import slots_of

TOPIC = TopicId("f" * 32)
TYPES = ("Exclusive", "Failover", "Shared", "Key_Shared")


class BrokenPromiseError(AssertionError):
    """A promise that the rules broke."""


def at(entry: int) -> Position:
    return Position(LedgerId(1), EntryId(entry))


@dataclass
class Checkpoint:
    consumer: str
    offsets: list[TopicOffset] = field(default_factory=list)
    commits: int = 0
    sink: dict[int, list[int]] = field(default_factory=dict)


@dataclass(eq=False)
class Process:
    checkpoint: Checkpoint
    steps: Iterator[None] = field(init=False)
    held: dict[int, int] = field(default_factory=dict)
    n: int = 0
    paused: bool = False
    alive: bool = True

    def __post_init__(self) -> None:
        """Set the state that Spark reads from the checkpoint when the query starts."""
        logged = self.checkpoint.offsets
        self.batch = self.checkpoint.commits
        self.start = logged[self.batch - 1] if self.batch else None
        self.pending = logged[-1] if len(logged) > self.batch else None


class World:
    def __init__(self, seed: int, subscription_type: str, calm: bool = False) -> None:
        self.random = random.Random(seed)
        self.type = subscription_type
        self.slots = slots_of(subscription_type)
        self.calm = calm  # no consumer loses a slot by force: each entry is delivered exactly once
        self.record = SubscriptionRecord(
            topic_id=TOPIC, name="s", type=subscription_type, start_ledger=1, start_entry=0, start_epoch=1,
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        )  # fmt: skip
        self.rows: dict[int, list[CursorRow]] = {slot: [] for slot in self.slots}
        self.length = 0
        self.processes: list[Process] = []
        self.checkpoints: list[Checkpoint] = []
        self.holder: dict[tuple[int, int], Process] = {}
        self.forced: set[int] = set()  # slots whose entries may come twice
        self.delivered: Counter[int] = Counter()
        self.lowest = {slot: at(0) for slot in self.slots}
        self.settling = False
        self.names = 0

    # --- what a process sees and does ---

    def positions(self) -> dict[int, Position]:
        owners = positions.owners_by_slot(self.record)
        return {slot: positions.current_position(self.record, owners.get(slot), self.rows[slot]) for slot in self.slots}

    def lease_states(self, me: str) -> dict[str, LeaseState]:
        seen = {}
        for consumer in sorted({process.checkpoint.consumer for process in self.processes} - {me}):
            mine = [process for process in self.processes if process.checkpoint.consumer == consumer]
            if any(process.alive and not process.paused for process in mine):
                choices = [LeaseState.ALIVE, LeaseState.ALIVE, LeaseState.UNKNOWN]
                if not self.calm and not self.settling and self.random.random() < 0.03:
                    choices = [LeaseState.EXPIRED]  # a long pause of the thread: safety may not rest on leases
            elif self.settling:
                choices = [LeaseState.EXPIRED]
            elif self.calm:
                choices = [LeaseState.ALIVE, LeaseState.UNKNOWN]
            else:
                choices = [LeaseState.UNKNOWN, LeaseState.EXPIRED]
            seen[consumer] = self.random.choice(choices)
        return seen

    def situation(self, process: Process, committed: TopicOffset | None, stopping: bool = False) -> Situation:
        consumer = process.checkpoint.consumer
        return Situation(
            consumer, self.type, "t", self.record, self.positions(), self.lease_states(consumer), dict(process.held),
            committed, stopping,
        )  # fmt: skip

    def settle(self, process: Process, situation: Situation, actions: tuple) -> bool:
        """The compare-and-set; False is a conflict."""
        record = ownership.apply(situation.record, actions)
        if record is not situation.record:
            if self.record is not situation.record:
                return False
            before = positions.owners_by_slot(self.record)
            for action in actions:
                if isinstance(action, Take):
                    self.took(process, situation, action, before)
            self.record = record
        process.held = ownership.held_after(actions)
        for slot, epoch in process.held.items():
            if self.holder.get((slot, epoch)) is not process:
                raise BrokenPromiseError(f"slot {slot} has two owners under epoch {epoch}")
        self.check_cursor()
        return True

    def took(self, process: Process, situation: Situation, action: Take, before: dict) -> None:
        for slot in action.positions:
            if self.holder.setdefault((slot, action.epoch), process) is not process:
                raise BrokenPromiseError(f"slot {slot} was taken twice under epoch {action.epoch}")
            owner = before.get(slot)
            if owner is not None and owner.consumer not in (None, action.consumer):
                if situation.others.get(owner.consumer, LeaseState.EXPIRED) is not LeaseState.EXPIRED:
                    raise BrokenPromiseError(f"slot {slot} was taken from a consumer that may be alive")
                self.forced.add(slot)
            if not self.calm:  # what the former owner wrote after the taker's reading does not count
                self.lowest[slot] = min(self.lowest[slot], situation.cursor[slot])

    def move_cursor(self, process: Process, committed: TopicOffset) -> None:
        process.n += 1
        before = self.positions()
        owners = positions.owners_by_slot(self.record)
        for row in positions.cursor_moves(self.record, before, process.held, committed, process.n):
            self.rows[row.slot].append(row)
            counts = owners[row.slot].epoch == row.epoch >= self.record.start_epoch
            position = positions.current_position(self.record, owners[row.slot], self.rows[row.slot])
            if position != (at(row.entry) if counts else before[row.slot]):
                raise BrokenPromiseError(f"the row {row} {'does not count' if counts else 'is stale and counts'}")
        self.check_cursor()

    def check_cursor(self) -> None:
        for slot, position in self.positions().items():
            if position < self.lowest[slot]:
                raise BrokenPromiseError(f"the cursor of slot {slot} went back from {self.lowest[slot]} to {position}")
            self.lowest[slot] = position

    def entries(self, offset: TopicOffset) -> list[int]:
        owners = ((slot, offset.at(slot)) for slot in self.slots)
        return [
            entry
            for slot, range_ in owners
            if range_ is not None
            for entry in range(range_.start.entry, range_.end.entry)
            if self.slot_of(entry) == slot
        ]

    def slot_of(self, entry: int) -> int:
        return entry * 37 % len(self.slots)

    def commit(self, checkpoint: Checkpoint) -> None:
        checkpoint.commits += 1
        self.delivered.update(checkpoint.sink[checkpoint.commits - 1])

    # --- a process: Spark's loop ---

    def run(self, process: Process) -> Iterator[None]:
        spark = process.checkpoint
        if process.pending is not None and not (yield from self.replay(process)):
            return
        while True:
            situation = self.situation(process, process.start)
            yield
            actions = ownership.decide(situation)
            if isinstance(actions[0], Refuse | Fenced):
                return
            yield
            if not self.settle(process, situation, actions):
                continue
            yield
            if process.start is not None:
                self.move_cursor(process, process.start)
            end = self.length if self.settling else self.random.randint(0, self.length)
            offset = ownership.planned(TOPIC, self.type, actions, at(end))
            yield
            if not any(range_.start < range_.end for range_ in offset.ranges):
                continue
            if len(spark.offsets) != process.batch:
                return  # another process of this query has logged the batch: Spark stops the second one
            spark.offsets.append(offset)
            process.pending = offset
            yield
            if not (yield from self.batch(process)):
                return

    def replay(self, process: Process) -> Iterator[None]:
        """The last logged batch again, from its own offset; False if the query fails."""
        while True:
            actions = ownership.decide(self.situation(process, process.start))
            if isinstance(actions[0], Refuse | Fenced):
                return False
            yield
            if not (self.type == "Exclusive" and isinstance(actions[-1], Standby)):
                return (yield from self.batch(process))

    def batch(self, process: Process) -> Iterator[None]:
        spark = process.checkpoint
        spark.sink[process.batch] = self.entries(process.pending)
        yield
        if spark.commits != process.batch:
            return False
        self.commit(spark)
        yield
        process.start, process.pending, process.batch = process.pending, None, process.batch + 1
        return True

    # --- what happens to processes ---

    def start(self, checkpoint: Checkpoint) -> Process:
        process = Process(checkpoint)
        process.steps = self.run(process)
        self.processes.append(process)
        return process

    def join(self) -> None:
        self.names += 1
        self.checkpoints.append(Checkpoint(f"c{self.names}"))
        self.start(self.checkpoints[-1])

    def restart(self) -> None:
        """A query starts again, with the old process dead or still there as a zombie."""
        checkpoint = self.random.choice(self.processes).checkpoint
        for process in self.processes:
            process.alive &= process.paused or process.checkpoint is not checkpoint
        self.start(checkpoint)

    def restart_without_checkpoint(self) -> None:
        """The same `consumerName`, a new checkpoint: what was committed and not yet in the cursor comes again."""
        old = self.random.choice(self.processes)
        old.alive = False
        consumer = old.checkpoint.consumer
        owners = positions.owners_by_slot(self.record)
        self.forced.update(slot for slot, owner in owners.items() if owner.consumer == consumer)
        self.checkpoints.append(Checkpoint(consumer))
        self.start(self.checkpoints[-1])

    def stop(self, process: Process) -> None:
        """stop(): everything is given back, at what the reader knows to be committed."""
        process.alive = False
        situation = self.situation(process, process.start, stopping=True)
        if process.pending is not None:
            if self.calm:
                process.alive = True
                return
            self.forced.update(process.held)
        actions = ownership.decide(situation)
        if not isinstance(actions[0], Refuse | Fenced):
            self.settle(process, situation, actions)
        process.steps = iter(())

    def reset(self) -> None:
        to = self.random.randint(0, self.length)
        self.record = self.record.model_copy(
            update={"start_entry": to, "start_epoch": ownership.next_epoch(self.record)}
        )
        self.forced.update(self.slots)
        self.lowest = {slot: at(to) for slot in self.slots}
        self.delivered = Counter({entry: n for entry, n in self.delivered.items() if entry < to})
        for entry in range(to):  # a reset forward skips on purpose
            self.delivered[entry] += 1

    def event(self) -> None:
        running = [process for process in self.processes if process.alive and not process.paused]
        roll = self.random.random()
        if roll < 0.10:
            self.length += self.random.randint(1, 12)
        elif not running or (roll < 0.13 and len(running) < 4):
            self.join()
        elif roll < 0.16:
            self.restart()
        elif roll < 0.18:
            self.stop(self.random.choice(running))
        elif self.calm or roll > 0.26:
            self.step(self.random.choice(running))
        elif roll < 0.20:
            self.random.choice(running).alive = False
        elif roll < 0.22:
            self.random.choice(running).paused = True
        elif roll < 0.24:
            self.random.choice(self.processes).paused = False
        elif roll < 0.25:
            self.restart_without_checkpoint()
        elif self.random.random() < 0.2:
            self.reset()

    def step(self, process: Process) -> None:
        if next(process.steps, self) is self:
            process.alive = False

    def finish(self) -> None:
        """Let the remaining readers read to the end, and check what was delivered."""
        self.settling = True
        if self.calm:
            self.processes = []
            for checkpoint in self.checkpoints:
                self.start(checkpoint)
        else:
            for process in self.processes:
                process.alive = False
            self.join()
        for _ in range(6_000):
            running = [process for process in self.processes if process.alive]
            if not running and self.calm:
                self.start(self.random.choice(self.checkpoints))
                continue
            if not running:
                break
            self.step(self.random.choice(running))
            if self.delivered.keys() >= set(range(self.length)) and self.done():
                break
        missing = [entry for entry in range(self.length) if not self.delivered[entry]]
        if missing:
            raise BrokenPromiseError(f"entries {missing} were never delivered")
        twice = [e for e in range(self.length) if self.delivered[e] > 1 and self.slot_of(e) not in self.forced]
        if twice:
            raise BrokenPromiseError(f"entries {twice} were delivered twice, though no slot was taken by force")

    def done(self) -> bool:
        return all(len(checkpoint.offsets) == checkpoint.commits for checkpoint in self.checkpoints) or not self.calm


def simulate(seed: int, subscription_type: str, calm: bool = False, world: Callable[..., World] = World) -> World:
    w = world(seed, subscription_type, calm)
    for _ in range(w.random.randint(50, 300)):
        w.event()
    w.finish()
    return w


@pytest.mark.parametrize("subscription_type", TYPES)
@pytest.mark.parametrize("calm", [False, True], ids=["chaos", "calm"])
def test_no_schedule_breaks_a_promise(subscription_type: str, calm: bool) -> None:
    forced = 0
    for seed in range(60 if len(slots_of(subscription_type)) == 1 else 8):
        forced += bool(simulate(seed, subscription_type, calm).forced)
    assert bool(forced) is not calm


def test_a_seed_gives_one_run() -> None:
    first, second = simulate(7, "Shared"), simulate(7, "Shared")
    assert first.record == second.record
    assert first.delivered == second.delivered


# --- broken rules: the simulation must find each of them ---


def same_epoch(record: SubscriptionRecord) -> int:
    return ORIGINAL_NEXT_EPOCH(record) - 1 if record.owners else 2


def n_before_epoch(record: SubscriptionRecord, owner: SlotOwner | None, rows: list[CursorRow]) -> Position:
    return ORIGINAL_POSITION(record, owner, [max(rows, key=lambda row: (row.n, row.epoch))] if rows else [])


def any_row_counts(record: SubscriptionRecord, owner: SlotOwner | None, rows: list[CursorRow]) -> Position:
    if not rows:
        return ORIGINAL_POSITION(record, owner, rows)
    newest = max(rows, key=lambda row: row.rank)
    return at(newest.entry)


def cursor_only(situation: Situation, owner: object, slot: int) -> Position:
    return situation.cursor[slot]


def checkpoint_always(situation: Situation, owner: object, slot: int) -> Position:
    done = situation.committed.at(slot) if situation.committed else None
    return situation.cursor[slot] if done is None else done.end


def decide_without_fence(situation: Situation) -> tuple:
    """Believes the record's owner id, whichever process took the slot."""
    owners = positions.owners_by_slot(situation.record)
    mine = {slot: owner.epoch for slot, owner in owners.items() if owner.consumer == situation.consumer}
    return ORIGINAL_DECIDE(replace(situation, held=mine))


ORIGINAL_NEXT_EPOCH = ownership.next_epoch
ORIGINAL_POSITION = positions.current_position
ORIGINAL_DECIDE = ownership.decide


class EagerRelease(World):
    """Releases at what is logged instead of at what is committed."""

    def stop(self, process: Process) -> None:
        process.start = process.pending or process.start
        super().stop(process)


class EagerCursor(World):
    """Moves the cursor when the batch is logged instead of when it is committed."""

    def batch(self, process: Process) -> Iterator[None]:
        self.move_cursor(process, process.pending)
        yield
        return (yield from super().batch(process))


MUTANTS: dict[str, tuple[str, Callable[..., object]]] = {
    "take without a new epoch": ("next_epoch", same_epoch),
    "compare n before epoch": ("current_position", n_before_epoch),
    "count rows of former owners": ("current_position", any_row_counts),
    "restart at the cursor, not the checkpoint": ("_resume", cursor_only),
    "restart at the checkpoint, although others have read since": ("_resume", checkpoint_always),
    "two processes of one consumer share an epoch": ("decide", decide_without_fence),
    "take from the living": ("_has_live_owner", lambda owner, others: False),
    "read on after a reset": ("_reset", lambda situation: None),
}


def is_found(world: Callable[..., World] = World) -> bool:
    for seed in range(60):
        for subscription_type in ("Failover", "Shared", "Exclusive"):
            for calm in (True, False):
                try:
                    simulate(seed, subscription_type, calm, world)
                except (BrokenPromiseError, ValueError):
                    return True
    return False


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_simulation_finds_a_broken_rule(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken = MUTANTS[mutant]
    monkeypatch.setattr(positions if hasattr(positions, name) else ownership, name, broken)
    assert is_found()


@pytest.mark.long
@pytest.mark.parametrize("world", [EagerRelease, EagerCursor])
def test_the_simulation_finds_a_reader_that_acts_before_the_commit(world: type[World]) -> None:
    assert is_found(world)
