"""The scheduler: a pool of events that are under way, of which a seeded one happens next; and what goes wrong.

Nothing is ordered but by its cause: the pool's random choice delays and reorders everything. An owner that is paused
keeps its events (SIGSTOP); a dead one's are dropped, except those that have left it already (owner None).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pulsar_on_spark.ledger.journal.log import Copy
from pulsar_on_spark.model.ids import LedgerId, PathId
from tests.simulators.journal.disk import JournalFile, SimPath
from tests.simulators.journal.object_disk import SimStore
from tests.simulators.journal.oracle import Oracle
from tests.simulators.journal.register import new_register

Step: TypeAlias = Callable[..., None]
"""The action of an event, run when its turn has come."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a run: sizes, and the probability of each fault.

    Attributes:
        name: For reports.
        paths: Number of storage paths.
        stores: Number of those that are on object stores.
        write_quorum: Copies of a frame.
        ack_quorum: Durable copies of an acknowledged one.
        roll_groups: Groups to a file.
        loss: Probability that a message to a path, or its answer, is lost.
        duplicate: Probability that it comes twice.
        unknown: Probability that the outcome of a commit is reported as unknown.
        steps: Steps before the run settles.
        weights: Name of an action -> how often, relative to the others.
        act: Probability that a step is an action and not an event of the pool.
        io_error: Probability that an fdatasync fails.
        rename_fails: Probability that a fence fails.
        checks_answers: Whether single answers of single files are checked, or only what follows from them.
    """

    name: str
    paths: int = 5
    stores: int = 0
    write_quorum: int = 3
    ack_quorum: int = 2
    roll_groups: int = 6
    loss: float = 0.01
    duplicate: float = 0.02
    unknown: float = 0.05
    steps: int = 300
    weights: tuple[tuple[str, int], ...] = ()
    act: float = 0.12
    io_error: float = 0.005
    rename_fails: float = 0.03
    checks_answers: bool = True

    @property
    def is_healthy(self) -> bool:
        """True if no path is ever away, and no disk loses anything."""
        weights = dict(self.weights)
        return all(weights.get(name) == 0 for name in ("away", "crash", "empty", "damage", "power_cut"))


class Actor:
    """A process: its events wait while it is paused, and are dropped when it is dead."""

    def __init__(self, world: World, name: str) -> None:
        """Give it a name for the trace."""
        self.world = world
        self.name = name
        self.alive = True
        self.held: list[tuple[Step, tuple[object, ...]]] | None = None

    def pause(self) -> None:
        """Stop it where it is."""
        if self.held is None:
            self.held = []

    def wake(self) -> None:
        """Let it go on; what came meanwhile happens now, in any order."""
        held, self.held = self.held or [], None
        for step, arguments in held:
            self.world.post(self, step, *arguments)

    def kill(self) -> None:
        """SIGKILL."""
        self.alive = False
        self.held = None


class World:
    """The paths, register, truth and events of a run."""

    def __init__(self, profile: Profile, seed: int, ledgers: tuple[LedgerId, ...], *, traced: bool = False) -> None:
        """A world in which only the ledgers were opened; the same seed always gives the same run."""
        self.profile = profile
        self.rng = random.Random(f"{profile.name}:{seed}")
        self.random = self.rng.random
        self.pool: list[tuple[Actor | None, Step, tuple[object, ...]]] = []
        kinds = [SimStore] * profile.stores + [SimPath] * (profile.paths - profile.stores)
        self.paths = {PathId(number): kind(PathId(number)) for number, kind in enumerate(kinds)}
        self.register = new_register(ledgers)
        self.oracle = Oracle(self.register, checks_answers=profile.checks_answers)
        self.steps = 0
        self.losses = 0
        self.faults = 0
        self.loss = profile.loss
        self.io_error = profile.io_error
        self.rename_fails = profile.rename_fails
        self.trace: list[str] | None = [] if traced else None
        self.content = 0

    def post(self, owner: Actor | None, step: Step, *arguments: object) -> None:
        """Let this happen at some later time."""
        self.pool.append((owner, step, arguments))

    def send(self, owner: Actor | None, step: Step, *arguments: object) -> bool:
        """As `post`, over a network that loses and duplicates; returns whether it was not lost."""
        chance = self.random()
        if chance < self.loss:
            return False
        self.pool.append((owner, step, arguments))
        if chance > 1 - self.profile.duplicate:
            self.pool.append((owner, step, arguments))
        return True

    def deliver(self) -> None:
        """Deliver an event of the pool."""
        pool = self.pool
        index = int(self.random() * len(pool))
        owner, step, arguments = pool[index]
        pool[index] = pool[-1]
        pool.pop()
        self.steps += 1
        if owner is not None:
            if not owner.alive:
                return
            if owner.held is not None:
                owner.held.append((step, arguments))
                return
        if self.trace is not None:
            name = owner.name if owner is not None else "-"
            self.note(f"{name} {step.__name__}{arguments}")
        step(*arguments)

    def note(self, text: str) -> None:
        """Put a line in the trace."""
        if self.trace is not None:
            self.trace.append(_shortened(f"{self.steps} {text}"))

    def append_snapshot(self, subscription: str, n: int) -> None:
        """A cursor's snapshot is in Delta: the largest counts."""
        snapshots = self.register.snapshots
        snapshots[subscription] = max(n, snapshots.get(subscription, -1))

    def create_file(self, copy: Copy) -> JournalFile | None:
        """Create an empty journal file, durably; None if the path does not take it."""
        path = self.paths[copy.path]
        if not path.usable or copy in path.files:
            return None
        file = path.new_file(copy)
        path.files[copy] = file
        self.oracle.files[copy] = file
        return file


_CALLABLE = re.compile(
    r"<(?:bound method|built-in method|function) (?:\w+\.|<locals>\.)*(<?\w+>?)(?: of .*?)?(?: at 0x\w+)?>"
)


def _shortened(line: str) -> str:
    line = re.sub(r"Copy\((?:path=)?(\d+), (?:file=)?'([^']*)'\)", r"\1/\2", line)
    line = re.sub(r"<(?:\w+\.)*(\w+)(?: object at 0x\w+|: [^>]*)>", r"\1", line)
    line = _CALLABLE.sub(r"\1", line)
    return re.sub(r"\b(?:path|copy|copies|record|first|last|state|fragments|version)=", "", line)
