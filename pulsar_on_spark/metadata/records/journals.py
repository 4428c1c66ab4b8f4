"""Broker incarnations: their journals, and how far these are sealed."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from pulsar_on_spark.metadata.records.record import Record


class JournalFragment(BaseModel):
    """A run of an incarnation's frames and the journal files that hold it, as (path id, file) pairs.

    `first` is its first frame's number; None while it is only prepared.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    first: int | None
    copies: tuple[tuple[int, str], ...]


class IncarnationRecord(Record):
    """A broker incarnation's state and what its journal consists of.

    A ledger of an incarnation that is not CLOSED may be open. An incarnation has one quorum setting; a broker with two
    of them runs as two incarnations.

    Attributes:
        incarnation: The id.
        state: See `ledger.journal.log`, also for the rules of its changes.
        write_quorum: Copies of each fragment where enough paths are left.
        ack_quorum: Durable copies that acknowledge a frame.
        fragments: In the order of their frames; trimmed ones are left out at the front.
        last_frame: The last frame of the closed journal, -1 if there is none; None before.
        log_token: Which proposal this is, for whoever does not know the outcome of a commit.
        given_up_paths: Storage paths that an operator gave up to have the journal closed; entries may be lost.
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
    """Entries [first, end) of a ledger that are lost; `first` = `end`: from there on, nobody can tell how many."""

    model_config = ConfigDict(frozen=True, extra="allow")
    ledger_id: int
    first: int
    end: int


class GivenUpFrames(BaseModel):
    """Frames [begin, end) of a journal that no copy gave and that an operator gave up, with what is lost with them.

    `entries` is None if nobody can tell.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    begin: int
    end: int
    entries: tuple[LostEntries, ...] | None = None


class SealRecord(Record):
    """How far an incarnation's journal is sealed and trimmed; committed under the incarnation's `seal` key only.

    Attributes:
        incarnation: The id.
        sealed_before: All entries in frames below are in segments, or their topic is deleted.
        trimmed_before: Frames below need no journal file any more: whole fragments, sealed and snapshotted.
        trimmed_at: The trimmer's clock at the last trim; files go a while later, for readers under way.
        given_up: Frames that are passed over (see `topic.managed_ledger.sealing.lost_frames`).
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
