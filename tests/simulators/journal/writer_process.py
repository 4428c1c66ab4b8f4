"""A broker incarnation's journal writer, simulated, with clients that publish to a few ledgers."""

from __future__ import annotations

from pulsar_on_spark.ledger.journal.log import NO_FRAME, FrameFacts, FrameKind
from pulsar_on_spark.ledger.journal.messages import (
    Acknowledged,
    AddGroup,
    Append,
    BecameIdle,
    CloseLog,
    CopyFailed,
    LogAbandoned,
    LogClosed,
    LogFenced,
    LogOpened,
    PathWithdrawn,
    Resend,
    SpareOffered,
    StartLog,
    Starved,
)
from pulsar_on_spark.ledger.journal.sealing import EntryRange
from pulsar_on_spark.ledger.journal.writer import JournalWriter
from pulsar_on_spark.model.ids import EntryId, LedgerId, PathId
from pulsar_on_spark.model.quorum import Quorum
from tests.simulators.journal.disk import SimFrame
from tests.simulators.journal.processes import CoreEffect, CoreEvent, JournalProcess
from tests.simulators.journal.world import Profile, World

LEDGERS = (LedgerId(1), LedgerId(2), LedgerId(3))
SUBSCRIPTION = "s"


class WriterProcess(JournalProcess):
    """A broker incarnation's journal writer, with clients that publish to a few ledgers."""

    def __init__(self, world: World, name: str, profile: Profile) -> None:
        """Create the process; its log is opened when `feed` gets StartLog."""
        super().__init__(world, name)
        quorum = Quorum(profile.write_quorum, profile.write_quorum, profile.ack_quorum)
        self.core = JournalWriter(name, quorum, roll_bytes=profile.roll_groups, max_in_flight=12)
        self.is_fenced = False
        self.acked = NO_FRAME
        self.next_entries = dict.fromkeys(LEDGERS, 0)
        self._last_frames = dict.fromkeys(LEDGERS, NO_FRAME)
        self._retired: dict[LedgerId, int] = {}
        self.cursor = 0

    def start(self) -> None:
        """Open the log."""
        paths = list(self.world.paths)
        self.world.rng.shuffle(paths)
        self.feed(StartLog(tuple(paths)))

    def feed(self, event: CoreEvent) -> None:
        """Give the core an event and serve its effects."""
        self.serve(self.core.handle(event))  # type: ignore[arg-type]  # the writer's own

    def add(self) -> None:
        """Clients publish, or acknowledge: one group."""
        if self.core.can_add:
            self.feed(AddGroup(FrameKind.CURSOR if self.world.random() < 0.15 else FrameKind.ENTRIES, 1))

    def idle(self) -> None:
        """No group is waiting."""
        self.feed(BecameIdle())

    def offer(self) -> None:
        """A path is offered, or offered again."""
        self.feed(SpareOffered(PathId(self.world.rng.randrange(len(self.world.paths)))))

    def withdraw(self) -> None:
        """A path is to be drained."""
        self.feed(PathWithdrawn(PathId(self.world.rng.randrange(len(self.world.paths)))))

    def time_out(self) -> None:
        """Let one of the paths take too long."""
        if self.open_files:
            self.feed(CopyFailed(self.world.rng.choice(list(self.open_files))))

    def close(self) -> None:
        """A clean end, if the log is open."""
        if self.core.can_add:
            self.feed(CloseLog())

    def serve_one(self, effect: CoreEffect) -> None:
        """The writer's own effects."""
        world = self.world
        match effect:
            case Append(copies, facts, sync):
                frame = self._encode(facts)
                self.frames[facts.number] = frame
                world.oracle.on_sent(frame)
                for copy in copies:
                    self.ask(copy, facts.number, facts.number, sync)
            case Acknowledged(lac):
                world.note(f"{self.name} acknowledges {lac}")
                world.oracle.on_acknowledged(lac)
                self.acked = lac
            case Resend(copy, first, last):
                self.ask(copy, first, last, True)
            case LogFenced() | LogAbandoned():
                self.is_fenced = True
            case LogOpened() | LogClosed() | Starved():
                pass
            case _:
                super().serve_one(effect)

    def _encode(self, facts: FrameFacts) -> SimFrame:
        self.world.content += 1
        entries: list[EntryRange] = []
        cursors: tuple[tuple[str, int], ...] = ()
        if facts.kind is FrameKind.ENTRIES:
            for ledger, first in self.next_entries.items():
                if self.world.random() < 0.5:
                    end = first + 1 + int(self.world.random() * 3)
                    entries.append(EntryRange(ledger, EntryId(first), EntryId(end)))
                    self.next_entries[ledger] = end
                    self._last_frames[ledger] = facts.number
        elif facts.kind is FrameKind.CURSOR:
            self.cursor += 1
            cursors = ((SUBSCRIPTION, self.cursor),)
        return SimFrame(facts, self.world.content, tuple(entries), cursors)

    def retire(self) -> None:
        """Stop appending to one of the ledgers: it is idle, or Spark has attached another one behind it."""
        if len(self.next_entries) > 1:
            ledger = self.world.rng.choice(list(self.next_entries))
            self._retired[ledger] = self.next_entries.pop(ledger)

    def drained(self) -> tuple[LedgerId, EntryId] | None:
        """A retired ledger that may be closed, with its number of entries; once."""
        for ledger, entries in self._retired.items():
            if self.is_drained(ledger):
                del self._retired[ledger]
                return ledger, EntryId(entries)
        return None

    def is_drained(self, ledger: LedgerId) -> bool:
        """True if every entry of the ledger is acknowledged."""
        return self._last_frames[ledger] <= self.acked

    def snapshot(self) -> None:
        """The newest acknowledged cursor record goes to Delta: a blind append of what the owner knows."""
        numbers = [n for number in range(self.acked + 1) for _, n in self.frames[number].cursors]
        if numbers:
            self.world.post(None, self.world.append_snapshot, SUBSCRIPTION, max(numbers))
