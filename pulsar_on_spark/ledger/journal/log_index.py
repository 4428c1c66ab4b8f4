"""The entries of one log that a reader may show, of the ledgers that it is interested in. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

from pulsar_on_spark.ledger.journal.log import Fragment, FrameNumber, LogRecord, fragment_of

CHUNK_FRAMES = 256
"""Frames whose entries of a ledger form one stretch, unless the files change between them."""


class Run(Protocol):
    """The entries of one ledger in one frame: [first, end)."""

    @property
    def frame(self) -> FrameNumber:
        """The frame's number."""

    @property
    def first(self) -> int:
        """The first entry."""

    @property
    def end(self) -> int:
        """The number after the last entry."""


R = TypeVar("R", bound=Run)
S = TypeVar("S")
MakeStretch: TypeAlias = Callable[[int, Fragment | None, list[R]], S]
"""Makes what a reader shows out of the first entry, the fragment, and runs that follow each other in it."""


class GapError(Exception):
    """An acknowledged entry is in no frame that was found: it is sealed by now, or its copies are away or lost.

    The message names the missing entries or frames, as a part of a sentence.
    """


@dataclass(slots=True)
class _Chunk(Generic[R, S]):
    runs: list[R] = field(default_factory=list)
    made_of: tuple[object, ...] = ()
    made: list[tuple[int, int, S]] = field(default_factory=list)
    """(first entry, number after the last, stretch)."""


class LogIndex(Generic[R, S]):
    """The frames of one log, by the ledgers in them.

    Ledgers of others are not kept, so that a reader of one topic does not hold the index of five thousand. Their ids
    are, because a ledger may turn out to be wanted after frames with entries of it were looked at.
    """

    def __init__(self) -> None:
        self._wanted: dict[int, dict[int, _Chunk[R, S]]] = {}
        self._others: set[int] = set()

    def select_ledgers(self, ledgers: Collection[int]) -> bool:
        """Keep these ledgers' entries, and no others'; False if entries of one were passed over already."""
        known = self._wanted
        self._others |= {ledger for ledger, chunks in known.items() if chunks and ledger not in ledgers}
        self._wanted = {ledger: known.get(ledger, {}) for ledger in ledgers}
        return self._others.isdisjoint(ledgers)

    def is_wanted(self, ledger: int) -> bool:
        """True if to `add` entries of the ledger; remembers that they were there if not."""
        if ledger in self._wanted:
            return True
        self._others.add(ledger)
        return False

    def add(self, ledger: int, run: R) -> None:
        """Take in the entries of a wanted ledger in the next frame."""
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
        """Return a ledger's entries from `sealed_end` on, in frames up to `limit`, and the number after the last entry.

        Args:
            ledger: A wanted ledger.
            sealed_end: The number after its last sealed entry.
            record: Where frames are (`LogWalk.resolved`).
            limit: The last frame that may be read.
            make: Makes a stretch; stretches are kept while nothing changes.
            entries: Number of the ledger's entries, if its close row names it and the log is CLOSED.
            strict: Whether a gap is an error.

        Raises:
            GapError: an entry in front of one that is readable is missing, and `strict` is set.
        """
        chunks = self._wanted[ledger]
        found: list[S] = []
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
                found.append(stretch)
        if strict and entries is not None and _is_gap(at, entries):
            raise GapError(f"entries {ledger}:{at} to {ledger}:{entries - 1}")
        return tuple(found), at


def _visible(runs: list[R], limit: FrameNumber) -> int:
    """Return the number of these runs that are in frames that may be read."""
    visible = len(runs)
    while visible and runs[visible - 1].frame > limit:
        visible -= 1
    return visible


def _is_gap(at: int, first: int) -> bool:
    """Find the first missing entry: a ledger's ids are dense."""
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
