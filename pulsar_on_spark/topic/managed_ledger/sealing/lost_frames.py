"""Search for acknowledged frames of a CLOSED journal that have no good copy, which an operator can then give up.

One such frame stops the sealer, and thus also the trimmer, because they must not skip it on their own. If its copies
cannot be restored, an operator gives the frame up. Then the incarnation's `SealRecord` names it, the sealer continues
after it, and the records of its ledgers name the lost entries. No other frame is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from pulsar_on_spark.ledger.journal.frames import FrameHead
from pulsar_on_spark.ledger.journal.log import FrameKind, FrameNumber, LogState
from pulsar_on_spark.ledger.journal.log_reader import LogReader
from pulsar_on_spark.ledger.journal.sealing import ended_spans
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import GivenUpFrames, LedgerRecord, LostEntries, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, JournalUndecidedError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.storage.files import OS_FILES
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.sealing.journal_frames import JournalFrames
from pulsar_on_spark.topic.managed_ledger.sealing.seals import SealedLog, sealed_log


@dataclass(frozen=True, slots=True)
class LostFrames:
    """Frames [begin, end) that cannot be read.

    Attributes:
        begin: The first frame.
        end: The number after the last frame.
        entries: Number of entries in the frames; None if it is unknown, because no frame directory can be read either.
        topics: The topics of the entries; if the entries are unknown, all topics with a ledger in the journal.
        reason: The reason why the frames cannot be read from any copy.
    """

    begin: FrameNumber
    end: FrameNumber
    entries: int | None
    topics: tuple[str, ...]
    reason: str


def give_up_frames(root: RootHandle, incarnation: IncarnationId, *, commit: bool) -> list[LostFrames]:
    """Return the unreadable frames of a CLOSED journal, and give them up if `commit` is set.

    Args:
        root: The root.
        incarnation: The journal's incarnation. The untrimmed part of the journal is read completely.
        commit: True to give up the unreadable frames; False to only report them.

    Raises:
        InvalidArgumentError: the incarnation is unknown, or its journal is not CLOSED, because its broker is live or
            was not recovered yet.
        MetadataError: the metadata cannot be read or written.
    """
    log_ = sealed_log(root.store.view(), incarnation)
    if log_ is None:
        raise InvalidArgumentError(
            f"There is no journal of incarnation {incarnation} in {root.place}: give an incarnation that "
            "`pulsarpy status` lists."
        )
    if log_.record.state is not LogState.CLOSED:
        raise InvalidArgumentError(
            f"The journal of incarnation {incarnation} in {root.place} is {log_.record.state.name}: stop its broker "
            "and run `pulsarpy recover` first."
        )
    lost = list(_lost(root, log_))
    if commit and lost:
        named = tuple(each for each, _ in lost)

        def decide(view: View) -> Change | None:
            now = sealed_log(view, incarnation)
            if now is None:
                return None
            known = {(each.begin, each.end) for each in now.seal.given_up}
            new = tuple(each for each in named if (each.begin, each.end) not in known)
            seal = now.seal.model_copy(update={"given_up": (*now.seal.given_up, *new)})
            return Change(puts=[seal], keys={keys.incarnation_seal(incarnation): None}) if new else None

        root.store.commit(decide)
    return [_in_words(log_, each, reason) for each, reason in lost]


def _lost(root: RootHandle, found: SealedLog) -> Iterator[tuple[GivenUpFrames, str]]:
    last = found.record.last_frame
    assert last is not None, "the log is CLOSED"
    incarnation = IncarnationId(found.row.incarnation)
    with closing(
        JournalFrames(incarnation, root.current_journal_paths, found.floor, given_up=found.given_up)
    ) as frames:
        while frames.next <= last:
            frames.pass_given_up()
            try:
                if frames.next > last or frames.read(found.record) is not None:
                    continue
                reason = "its fragment has no number"
            except JournalUndecidedError as error:
                reason = str(error)
            lost = _at(root, found, frames.next)
            yield lost, reason
            frames.pass_over(lost.end)


def _at(root: RootHandle, found: SealedLog, number: FrameNumber) -> GivenUpFrames:
    """Return the lost frame `number` if a copy of its directory can be read; else all frames to its fragment's end.

    A lost frame that is already sealed loses no entries, only its cursor records.
    """
    incarnation = IncarnationId(found.row.incarnation)
    with closing(LogReader(incarnation, root.current_journal_paths, FrameHead, number, OS_FILES)) as heads:
        heads.main_read(found.record, number)
        head = heads.next(every=True)
    if head is None:
        end = next(end for _, end in ended_spans(found.record) if end > number)
        return GivenUpFrames(begin=number, end=end, entries=() if end <= found.seal.sealed_before else None)
    entries: tuple[LostEntries, ...] = ()
    if head.header.kind is FrameKind.ENTRIES and number >= found.seal.sealed_before:
        entries = tuple(
            LostEntries(ledger_id=run.ledger_id, first=run.first_entry, end=run.first_entry + run.entries)
            for run in head.runs()
        )
    return GivenUpFrames(begin=number, end=number + 1, entries=entries)


def _in_words(found: SealedLog, lost: GivenUpFrames, reason: str) -> LostFrames:
    ledgers = {ledger.ledger_id: ledger for ledger in found.ledgers()}
    names = {topic.topic_id: topic.name for topic in found.view.all(TopicRecord)}
    entries = lost.entries
    concerned: Sequence[LedgerRecord] = list(ledgers.values())
    if entries is not None:
        concerned = [ledgers[each.ledger_id] for each in entries if each.ledger_id in ledgers]
    topics = sorted({names[ledger.topic_id] for ledger in concerned if ledger.topic_id in names})
    count = None if entries is None else sum(each.end - each.first for each in entries)
    return LostFrames(lost.begin, lost.end, count, tuple(topics), reason)
