"""The simulated metadata of a root, and its leases: what is committed, and how each process sees it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pulsar_on_spark.metadata.records import Record
from pulsar_on_spark.metadata.state import DurableView, State, View, encode
from pulsar_on_spark.metadata.store import Change, Decide
from pulsar_on_spark.model.errors import MetadataError, StorageError
from pulsar_on_spark.storage.leases.contract import StoredLease
from tests.simulators.cluster.scheduler import Scheduler

HELD: Final = 0.3
"""The part of commits that were decided on an older view, as late as their keys allow."""
LATE_S: Final = 8.0
"""Limit of the time for which a commit whose caller got no answer may still arrive."""


@dataclass(frozen=True)
class Commit:
    """A commit that was made.

    Attributes:
        by: The process.
        change: The change.
        decided: The view on which it was decided.
        before: The view before it.
        after: The view after it.
    """

    by: str
    change: Change
    decided: View
    before: View
    after: View


@dataclass
class Metadata:
    """The metadata and leases of a root.

    Attributes:
        on_commit: Called after each commit.
        leases: The leases of brokers, by name.
        reads_fail: True while nothing can be read or written.
        writes_fail: True while nothing can be written.
        unknown: The part of commits whose caller is not told the outcome.
    """

    scheduler: Scheduler
    on_commit: Callable[[Commit], None] = lambda _: None
    leases: dict[str, StoredLease] = field(default_factory=dict)
    reads_fail: bool = False
    writes_fail: bool = False
    unknown: float = 0.0
    _views: list[DurableView] = field(default_factory=lambda: [DurableView(State(), 0)])
    _moved: dict[str, int] = field(default_factory=dict)

    @property
    def view(self) -> DurableView:
        """The newest view."""
        return self._views[-1]

    def view_of(self, version: int) -> DurableView:
        """Return an older view."""
        return self._views[version]

    def is_current(self, change: Change, version: int) -> bool:
        """Return True if none of a change's keys has moved since a version."""
        return all(self._moved.get(key, 0) <= version for key in change.keys)

    def put(self, records: Sequence[Record]) -> None:
        """Put first records."""
        self.make("", Change(puts=records, keys={"first": None}), self.view)

    def make(self, by: str, change: Change, decided: View) -> None:
        """Make a commit."""
        before, version = self.view, self.view.version + 1
        rows = [*((record, False) for record in change.puts), *((record, True) for record in change.deletes)]
        state = before.state.fork()
        state.apply(encode(rows, version, "t", ()))
        self._moved |= dict.fromkeys(change.keys, version)
        self._views.append(DurableView(state, version))
        self.on_commit(Commit(by, change, decided, before, self.view))


class SimulatedStore:
    """The metadata as one process sees them: `MetadataStore`, as far as brokers use it.

    Attributes:
        is_cut: True while this process alone reaches nothing.
        asked_at: The version at the time when the running call began.
    """

    def __init__(self, metadata: Metadata, process: str) -> None:
        self._metadata = metadata
        self._process = process
        self.is_cut = False
        self.asked_at = 0

    @property
    def _chance(self) -> random.Random:
        return self._metadata.scheduler.chance

    def require_reached(self, *, writes: bool = False) -> None:
        """Raise `MetadataError` if the store cannot be reached now."""
        if self.is_cut or self._metadata.reads_fail or (writes and self._metadata.writes_fail):
            raise MetadataError("The metadata cannot be reached now.")

    def view(self, *, durable: bool = False) -> DurableView:
        """Return the newest view."""
        self.require_reached()
        return self._metadata.view

    def commit(self, decide: Decide) -> View:
        """Decide on a view that was the newest one during this call, and commit; the outcome may stay unknown."""
        self.require_reached(writes=True)
        metadata = self._metadata
        decided: View = metadata.view
        change = decide(decided)
        if self._chance.random() < HELD and self.asked_at < decided.version:
            older = metadata.view_of(self._chance.randrange(self.asked_at, decided.version))
            held = decide(older)
            if held is not None and metadata.is_current(held, older.version):
                decided, change = older, held
            else:
                change = decide(decided)  # the caller keeps what the last call of `decide` told it
        if change is None:
            return metadata.view
        if self._chance.random() < metadata.unknown:
            self._leave_unknown(change, decided)
            raise MetadataError("The outcome of a commit is unknown.")
        metadata.make(self._process, change, decided)
        return metadata.view

    def _leave_unknown(self, change: Change, decided: View) -> None:
        place = self._metadata.view.version

        def arrive() -> None:
            if self._metadata.view.version == place:  # else another commit has its place in the log
                self._metadata.make(self._process, change, decided)

        fate = self._chance.randrange(3)
        if fate == 0:
            arrive()
        elif fate == 1:
            scheduler = self._metadata.scheduler
            scheduler.at(scheduler.now_s + self._chance.uniform(0, LATE_S), arrive)


class SimulatedLeases:
    """The leases of brokers as one process sees them: `LeaseStore`, as far as observers use it."""

    place = "the leases of brokers"

    def __init__(self, metadata: Metadata, store: SimulatedStore) -> None:
        self._metadata = metadata
        self._store = store

    def read_all(self) -> list[StoredLease]:
        """Read all leases."""
        self._require_reached(writes=False)
        return list(self._metadata.leases.values())

    def renew(self, name: str, content: bytes) -> None:
        """Write a lease."""
        self._require_reached(writes=True)
        self._metadata.leases[name] = StoredLease(name, content, self._metadata.scheduler.now_s)

    def _require_reached(self, *, writes: bool) -> None:
        try:
            self._store.require_reached(writes=writes)
        except MetadataError as error:
            raise StorageError("The leases cannot be reached now.") from error
