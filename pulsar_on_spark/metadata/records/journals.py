"""Broker incarnations, their journals, and the progress of sealing and trimming the journals."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from pulsar_on_spark.metadata.records.record import Record


class JournalFragment(BaseModel):
    """Consecutive frames of an incarnation and the journal files that hold them, as (path id, file) pairs.

    `first` is the first frame's number; None while the fragment is only prepared.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    first: int | None
    copies: tuple[tuple[int, str], ...]


class IncarnationRecord(Record):
    """A broker incarnation's state and the parts of its journal.

    A ledger may be open unless its incarnation is CLOSED. An incarnation has one quorum; a broker with topics of two
    quorums runs two incarnations.

    Attributes:
        incarnation: The id.
        state: State of the journal's log; `ledger.journal.log` has the rules of its changes.
        write_quorum: Number of copies of each fragment, if enough paths are left.
        ack_quorum: Number of durable copies that acknowledge a frame.
        fragments: The fragments in the order of their frames, without trimmed ones at the front.
        last_frame: The last frame of the closed journal, -1 if it has none; None until it is closed.
        log_token: Id of the proposal, by which its writer recognizes its own commit after an unknown outcome.
        given_up_paths: Storage paths that an operator gave up to close the journal; entries may be lost.
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
    """Lost entries [first, end) of a ledger. If `first` equals `end`, an unknown number of entries from there on."""

    model_config = ConfigDict(frozen=True, extra="allow")
    ledger_id: int
    first: int
    end: int


class GivenUpFrames(BaseModel):
    """Frames [begin, end) of a journal that no copy has and that an operator gave up.

    `entries` are the entries lost with them; None if these are unknown.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    begin: int
    end: int
    entries: tuple[LostEntries, ...] | None = None


class SealRecord(Record):
    """Progress of sealing and trimming an incarnation's journal; committed under the incarnation's `seal` key only.

    Attributes:
        incarnation: The id.
        sealed_before: The frame below which each entry is in a segment, or its topic is deleted.
        trimmed_before: The frame below which no journal file is needed: all fragments are sealed and snapshotted.
        trimmed_at: The time of the last trim on the trimmer's clock. Files are deleted some time later, so that current
            readers can finish.
        given_up: Frames that sealing skips (see `topic.managed_ledger.sealing.lost_frames`).
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
