"""The index of the readable entries in one log, for the ledgers that a reader selects. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

from pulsar_on_spark.ledger.journal.log import Fragment, FrameNumber, LogRecord, fragment_of

CHUNK_FRAMES = 256
"""Number of frames whose entries of one ledger form one stretch, unless the files change or entries are missing."""


class Run(Protocol):
    """The entries of one ledger in one frame: [first, end)."""

    @property
    def frame(self) -> FrameNumber:
        """The frame's number."""

    @property
    def first(self) -> int:
        """The id of the first entry."""

    @property
    def end(self) -> int:
        """The id after the last entry."""


R = TypeVar("R", bound=Run)
S = TypeVar("S")
MakeStretch: TypeAlias = Callable[[int, Fragment | None, list[R]], S]
"""Function that makes a reader's value for adjacent entries (a stretch) from first entry, fragment and runs."""


class GapError(Exception):
    """An acknowledged entry is in no frame that was read: it is sealed by now, or its copies are away or lost.

    The message is only the names of the missing entries or frames, to be used within a sentence.
    """


@dataclass(slots=True)
class _Chunk(Generic[R, S]):
    runs: list[R] = field(default_factory=list)
    made_of: tuple[object, ...] = ()
    made: list[tuple[int, int, S]] = field(default_factory=list)
    """(first entry, number after the last, stretch)."""


class LogIndex(Generic[R, S]):
    """Index of one log's frames by ledger.

    Only entries of selected ledgers are kept, so that a reader of one topic does not hold the index of five thousand.
    The ids of all other ledgers are kept, because such a ledger may be selected after its frames were passed.
    """

    def __init__(self) -> None:
        self._wanted: dict[int, dict[int, _Chunk[R, S]]] = {}
        self._others: set[int] = set()

    def select_ledgers(self, ledgers: Collection[int]) -> bool:
        """Select the ledgers whose entries are kept.

        Return True, or False if entries of one of them were already passed over.
        """
        previous = self._wanted
        self._others |= {ledger for ledger, chunks in previous.items() if chunks and ledger not in ledgers}
        self._wanted = {ledger: previous.get(ledger, {}) for ledger in ledgers}
        return self._others.isdisjoint(ledgers)

    def is_wanted(self, ledger: int) -> bool:
        """Return True if the ledger is selected; the caller must then `add` its entries.

        If False, its id is remembered.
        """
        if ledger in self._wanted:
            return True
        self._others.add(ledger)
        return False

    def add(self, ledger: int, run: R) -> None:
        """Add the entries of a selected ledger in the next frame."""
        chunks = self._wanted[ledger]
        chunks.setdefault(run.frame // CHUNK_FRAMES, _Chunk()).runs.append(run)

    def readable(
        self,
        ledger: int,
        sealed_end: int,
        record: LogRecord,
        limit: FrameNumber,
        make: MakeStretch[R, S],
        *,
        entries: int | None = None,
        strict: bool = True,
    ) -> tuple[tuple[S, ...], int]:
        """Return the stretches of a ledger's unsealed entries in frames up to `limit`, and the id after the last entry.

        Args:
            ledger: A selected ledger.
            sealed_end: The id after the ledger's last sealed entry.
            record: The record with the files of the frames (`LogWalk.resolved`).
            limit: The last frame that may be read.
            make: Makes a stretch of entries; stretches are cached while nothing changes.
            entries: The number of the ledger's entries, if the log is CLOSED and the ledger has a close row; else None.
            strict: True if a gap is an error.

        Raises:
            GapError: an entry before a readable one is missing, and `strict` is set.
        """
        chunks = self._wanted[ledger]
        stretches: list[S] = []
        at = sealed_end
        for number in list(chunks):
            chunk = chunks[number]
            if chunk.runs[-1].end <= sealed_end:
                del chunks[number]
                continue
            visible = _visible(chunk.runs, limit)
            if not visible or chunk.runs[visible - 1].end <= at:
                continue
            made_of = (max(at - chunk.runs[0].first, 0), visible, record.fragments)
            if chunk.made_of != made_of:
                chunk.made = _made(at, chunk.runs[:visible], record, make)
                chunk.made_of = made_of
            for first, end, stretch in chunk.made:
                if strict and _is_gap(at, first):
                    raise GapError(f"entries {ledger}:{at} to {ledger}:{first - 1}")
                at = end
                stretches.append(stretch)
        if strict and entries is not None and _is_gap(at, entries):
            raise GapError(f"entries {ledger}:{at} to {ledger}:{entries - 1}")
        return tuple(stretches), at


def _visible(runs: list[R], limit: FrameNumber) -> int:
    """Return the number of these runs that are in frames up to `limit`."""
    visible = len(runs)
    while visible and runs[visible - 1].frame > limit:
        visible -= 1
    return visible


def _is_gap(at: int, first: int) -> bool:
    """Return True if entries from `at` on are missing before `first`; a ledger's entry ids are dense."""
    return first > at


def _made(at: int, runs: list[R], record: LogRecord, make: MakeStretch[R, S]) -> list[tuple[int, int, S]]:
    """Split a chunk's runs from entry `at` on into stretches, where files change or entries are missing."""
    groups: list[tuple[Fragment | None, list[R]]] = []
    position = at
    for run in runs:
        if run.end <= at:
            continue
        fragment = fragment_of(record, run.frame)
        if not groups or groups[-1][0] is not fragment or run.first > position:
            groups.append((fragment, []))
        groups[-1][1].append(run)
        position = run.end
    made = []
    for fragment, group in groups:
        first = max(group[0].first, at)
        made.append((first, group[-1].end, make(first, fragment, group)))
    return made
