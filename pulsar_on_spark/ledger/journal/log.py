"""Plain values of the journal's protocol: the log's record, its fragments and copies, and fields of frame headers.

Words (BookKeeper's in brackets): the *incarnation log* [ledger] is what one broker incarnation wrote for one quorum
setting. Its *frames* [entries] are numbered from 0 without gap over all its files. A *fragment* is a run of frames
with one set of *copies* [ensemble]: files, one on each of its storage paths. The *LAC* [last add confirmed] is the
highest frame that was acknowledged, -1 before the first; all below it are acknowledged too.

The record changes only by compare-and-set on the version of the incarnation's `log` key:

    state         who may commit                      what it may change
    ------------  ----------------------------------  --------------------------------------------------------------
    (none)        the writer                          OPEN, with the first fragment
    OPEN          the writer                          roll, ensemble change; CLOSED, which moves the `seal` key too
    OPEN          any recoverer                       IN_RECOVERY; moves the `seal` key in the same commit
    IN_RECOVERY   any recoverer                       IN_RECOVERY again: each start moves the version, so that only
                                                      the latest recoverer can close (BookKeeper's TLA+ specification)
    IN_RECOVERY   the recoverer that started last     CLOSED
    CLOSED        nothing                             -
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import pairwise
from typing import TypeAlias

from crc32c import crc32c

from pulsar_on_spark.model.ids import IncarnationId, PathId

FrameNumber: TypeAlias = int
"""The number of a frame in its log, from 0 without gaps."""

NO_FRAME: FrameNumber = -1
"""The LAC of a log that has acknowledged nothing, and the last frame of an empty one."""


class LogState(Enum):
    """State of an incarnation's log."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


class FrameKind(IntEnum):
    """The content of a frame. A new kind is a new format version."""

    ENTRIES = 1
    CURSOR = 2
    LAC = 3
    ROLL = 4
    ATTACH = 5
    """Reserved, as is TXN: this version accepts such frames when it reads, and never writes them."""
    TXN = 6


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """The header fields of a frame that the protocol needs; `lac` is the LAC at the time the frame was first sent."""

    number: FrameNumber
    kind: FrameKind
    lac: FrameNumber


@dataclass(frozen=True, slots=True, order=True)
class Copy:
    """A journal file on a storage path; `file` is its name within the incarnation. A file never has two writers."""

    path: PathId
    file: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """A run of frames and the files that hold it.

    `first` is None for a fragment that was prepared ahead: it begins after the ROLL frame of the fragment before it. A
    file may belong to several fragments: files on surviving paths continue after an ensemble change.
    """

    first: FrameNumber | None
    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True)
class LogRecord:
    """The metadata record of an incarnation's log.

    Attributes:
        state: The log's state; the module's docstring has the transitions.
        write_quorum: The number of copies of each fragment, if enough paths are left.
        ack_quorum: The number of durable copies that acknowledge a frame, or close a log.
        fragments: The fragments in order; trimmed ones may be missing at the front.
        last_frame: The last frame of a CLOSED log; None in other states.
        token: Id of the process that proposed this record, and of its proposal. By this id, the process recognises its
            own commit after an unknown outcome.
        given_up: Storage paths that an operator gave up as lost before a recovery closed the log. Acknowledged frames
            after `last_frame` may have been on these paths only.
    """

    state: LogState
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    last_frame: FrameNumber | None = None
    token: str = ""
    given_up: tuple[PathId, ...] = ()


def ended_before(record: LogRecord) -> FrameNumber:
    """Return the highest first frame that the record names; 0 if it names none.

    A fragment gets its first frame in the record only when all frames before it are acknowledged, so no recovery starts
    below the returned frame (BookKeeper #2615).
    """
    return max((fragment.first for fragment in record.fragments if fragment.first is not None), default=0)


def unended_fragments(record: LogRecord) -> tuple[Fragment, ...]:
    """Return the fragments that a live writer may append to: the last that has begun, and one prepared after it."""
    floor = ended_before(record)
    return tuple(fragment for fragment in record.fragments if fragment.first is None or fragment.first >= floor)


def fragment_of(record: LogRecord, number: FrameNumber) -> Fragment | None:
    """Return the last fragment that begins at or before the frame; None if that fragment was trimmed away."""
    holding = None
    for fragment in record.fragments:
        if fragment.first is not None and fragment.first <= number:
            holding = fragment
    return holding


def spread_of(incarnation: IncarnationId) -> int:
    """Return a number that differs from log to log, so that readers of many logs begin with different paths."""
    return crc32c(incarnation.encode())


def in_reading_order(copies: tuple[Copy, ...], spread: int) -> tuple[Copy, ...]:
    """Return a fragment's copies in the order in which all readers of the log try them.

    Args:
        copies: The copies, at least one.
        spread: The log's `spread_of`.
    """
    start = spread % len(copies)
    return (*copies[start:], *copies[:start])


def copies_of(record: LogRecord) -> frozenset[Copy]:
    """Return every file that the record names."""
    return frozenset(copy for fragment in record.fragments for copy in fragment.copies)


def fault_in(record: LogRecord) -> str | None:
    """Return the inconsistency of a record as a clause for an error; None if there is none.

    Checked before a record is committed, and after it is read.
    """
    firsts = [fragment.first for fragment in record.fragments]
    begun = [first for first in firsts if first is not None]
    if None in firsts[:-1] or (firsts and firsts[0] is None):
        return "a fragment without first frame is not the last one"
    if any(first >= later for first, later in pairwise(begun)):
        return "fragments are not in rising order"
    if any(len(fragment.copies) < record.ack_quorum for fragment in record.fragments):
        return "a fragment has fewer copies than the ack quorum"
    if any(len({copy.path for copy in f.copies}) < len(f.copies) for f in record.fragments):
        return "a fragment has two copies on one path"
    if (record.state is LogState.CLOSED) != (record.last_frame is not None):
        return "last_frame belongs to CLOSED records only"
    if record.given_up and record.state is not LogState.CLOSED:
        return "paths are given up in CLOSED records only"
    if record.last_frame is not None and (None in firsts or any(first > record.last_frame for first in begun)):
        return "a fragment begins after the last frame"
    return None
