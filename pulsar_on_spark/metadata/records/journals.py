"""Broker incarnations, their journals, and the progress of sealing and trimming the journals."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from pulsar_on_spark.metadata.records.record import Record


class JournalFragment(BaseModel):
    """Consecutive frames of a journal. `copies` are the journal files that have them, as (path id, file id).

    `first` is the number of the first frame; None while the fragment is only prepared.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    first: int | None
    copies: tuple[tuple[int, str], ...]


class IncarnationRecord(Record):
    """A broker incarnation's state and the fragments of its journal.

    A ledger may be open unless its incarnation is CLOSED. An incarnation has one quorum, so a broker with topics of two
    quorums runs two incarnations.

    Attributes:
        incarnation: The incarnation's id.
        state: State of the journal's log; `ledger.journal.log` has the rules of its changes.
        write_quorum: Number of copies of each fragment, if enough storage paths can be written.
        ack_quorum: Number of durable copies that acknowledge a frame.
        fragments: The fragments in the order of their frames, without trimmed ones at the front.
        last_frame: The last frame of the closed journal, -1 if it has none; None until it is closed.
        log_token: Random id of the last commit of this record, by which its writer recognizes that commit after an
            unknown outcome.
        given_up_paths: Storage paths that an operator gave up to close the journal; entries may be lost with them.
    """

    kind: ClassVar[str] = "incarnation"
    incarnation: str
    state: Literal["OPEN", "IN_RECOVERY", "CLOSED"]
    write_quorum: int = 0
    ack_quorum: int = 0
    fragments: tuple[JournalFragment, ...] = ()
    last_frame: int | None = None
    log_token: str = ""
    given_up_paths: tuple[int, ...] = ()

    @property
    def record_id(self) -> str:
        """The incarnation's id."""
        return self.incarnation


class LostEntries(BaseModel):
    """Lost entries [first, end) of a ledger. If `first` equals `end`, an unknown number of entries from `first` on."""

    model_config = ConfigDict(frozen=True, extra="allow")
    ledger_id: int
    first: int
    end: int


class GivenUpFrames(BaseModel):
    """Frames [begin, end) of a journal that cannot be read from any copy and that an operator gave up.

    `entries` are the entries that were lost with the frames; None if these entries are unknown.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    begin: int
    end: int
    entries: tuple[LostEntries, ...] | None = None


class SealRecord(Record):
    """Progress of sealing and trimming an incarnation's journal; committed under the incarnation's `seal` key only.

    Attributes:
        incarnation: The incarnation's id.
        sealed_before: The frame below which each entry is in a segment, unless its topic is deleted.
        trimmed_before: The frame below which no journal file is needed, because all entries are sealed and the cursors
            table covers all cursor records.
        trimmed_at: The time of the last trim on the trimmer's clock; None before the first trim. Files are deleted some
            time later, so that current readers can finish.
        given_up: Frames that an operator gave up and sealing skips (`topic.managed_ledger.sealing.lost_frames`).
    """

    kind: ClassVar[str] = "seal"
    incarnation: str
    sealed_before: int = 0
    trimmed_before: int = 0
    trimmed_at: datetime | None = None
    given_up: tuple[GivenUpFrames, ...] = ()

    @property
    def record_id(self) -> str:
        """The incarnation's id."""
        return self.incarnation
