"""Opening and closing of a broker incarnation's ledgers, and termination of its topics, in one commit. Pure.

    open        a topic gets a new ledger at its chain's end; an attached ledger before it gets no more entries
    close       the final number of a ledger's entries is recorded
    terminate   a topic accepts no more entries from any writer

Every such commit uses the incarnation's `seal` key and the topics' keys. It is refused unless the incarnation is OPEN
in the view on which it is decided. A takeover changes that state in a commit under the `seal` key, so the two conflict.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pulsar_on_spark.ledger.journal.log import LogState
from pulsar_on_spark.ledger.journal.sealing import may_open
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import IdsRecord, IncarnationRecord, LedgerRecord, Record, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import (
    JournalFencedError,
    PulsarpyError,
    TopicNotFoundError,
    TopicOwnedElsewhereError,
    TopicTerminatedError,
)
from pulsar_on_spark.model.ids import IncarnationId, LedgerId, TopicId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.chain import chain

ID_BLOCK = 128
"""Minimum number of ledger ids that an incarnation takes from the counter at once."""


@dataclass(frozen=True, slots=True)
class IdBlock:
    """Ledger ids [next, end) that are reserved for this incarnation."""

    next: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class ClosedLedger:
    """A request to close a ledger. All its entries are acknowledged, and it gets no more entries."""

    part: TopicPart
    ledger_id: LedgerId
    entries: int


@dataclass(frozen=True, slots=True)
class Termination:
    """A request to terminate a topic. The same commit must close the topic's open ledger.

    Attributes:
        part: The topic.
        ends: By ledger, the number of entries of ledgers that a recovery closed, because the metadata may lack it.
    """

    part: TopicPart
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class LedgerCommit:
    """A planned commit, and its results, which are valid once it is committed.

    Attributes:
        change: The change to commit; None if there is nothing to commit.
        opened: By topic id, the new ledger of each topic that gets one.
        refused: By topic id, the error because of which the topic gets no ledger or cannot be terminated.
        terminated: By the id of each terminated topic, (ledger id, entry id) of its last message; (-1, -1) if it has
            none.
        ids: The reserved ledger ids that the commit does not use.
    """

    change: Change | None
    opened: Mapping[TopicId, LedgerId] = field(default_factory=dict)
    refused: Mapping[TopicId, PulsarpyError] = field(default_factory=dict)
    terminated: Mapping[TopicId, tuple[int, int]] = field(default_factory=dict)
    ids: IdBlock = field(default_factory=IdBlock)


def decide(
    view: View,
    incarnation: IncarnationId,
    opens: Sequence[TopicPart],
    closes: Sequence[ClosedLedger],
    ids: IdBlock,
    terminations: Sequence[Termination] = (),
    *,
    fence: bool = False,
) -> LedgerCommit:
    """Plan one commit that opens and closes ledgers and terminates topics. A refused topic does not affect others.

    Args:
        view: The metadata.
        incarnation: The incarnation.
        opens: The topics that need a ledger.
        closes: The ledgers to close.
        ids: The ids that are reserved for the incarnation.
        terminations: The topics to terminate.
        fence: True to commit even if nothing changes. Then an earlier commit of the incarnation with an unknown outcome
            can no longer succeed, because both use the `seal` key.

    Raises:
        JournalFencedError: the incarnation's record is missing or not OPEN.
    """
    record = view.get(IncarnationRecord, incarnation)
    if record is None or not may_open(LogState(record.state)):
        raise JournalFencedError(f"Broker incarnation {incarnation} was taken over: restart the broker.")
    puts: list[Record] = []
    moved: dict[str, int | None] = {}
    # Two requests may close the same ledger: the poll after a switch, and a simultaneous termination or unload.
    for closed in {each.ledger_id: each for each in closes}.values():
        ledger = view.get(LedgerRecord, f"{closed.part.topic_id}/{closed.ledger_id:020d}")
        if ledger is not None and not ledger.closed:  # else the topic was deleted, or an earlier commit closed it
            puts.append(ledger.model_copy(update={"closed": True, "entries": closed.entries}))
            moved[keys.topic(closed.part.name)] = None
    refused: dict[TopicId, PulsarpyError] = {}
    terminated: dict[TopicId, tuple[int, int]] = {}
    for termination in terminations:
        topic_id = TopicId(termination.part.topic_id)
        topic = _terminated(view, termination, closes)
        if isinstance(topic, PulsarpyError):
            refused[topic_id] = topic
            continue
        assert topic.terminated is not None
        terminated[topic_id] = topic.terminated
        puts.append(topic)
        moved[keys.topic(topic.name)] = None
    opened: dict[TopicId, LedgerId] = {}
    giver = _IdGiver(view, ids, len(opens))
    for part in opens:
        problem = _problem(view, part, incarnation, {each.part.topic_id for each in terminations})
        if problem is not None:
            refused[TopicId(part.topic_id)] = problem
            continue
        last = view.newest(LedgerRecord, part.topic_id)
        number = giver.above(0 if last is None else last.ledger_id)
        opened[TopicId(part.topic_id)] = LedgerId(number)
        puts.append(
            LedgerRecord(
                topic_id=part.topic_id, ledger_id=number, incarnation=incarnation, created_at=datetime.now(UTC)
            )
        )
        moved[keys.topic(part.name)] = None
    if fence and not puts:
        puts.append(IdsRecord(next_ledger_id=giver.free))
        moved[keys.IDS] = None
    if not puts:
        return LedgerCommit(None, {}, refused, terminated, ids)
    moved[keys.incarnation_seal(incarnation)] = None
    if giver.counter is not None:
        puts.append(IdsRecord(next_ledger_id=giver.counter))
        moved[keys.IDS] = None
    return LedgerCommit(Change(puts=puts, keys=moved), opened, refused, terminated, giver.block)


def has_attached_behind(view: View, topic_id: TopicId) -> bool:
    """Return True if Spark attached the topic's last ledger, so that a broker's open ledger hides it from readers."""
    last = view.newest(LedgerRecord, topic_id)
    return last is not None and last.incarnation is None


def _terminated(view: View, termination: Termination, closes: Sequence[ClosedLedger]) -> TopicRecord | PulsarpyError:
    """Return the record of the terminated topic, or the error if the topic cannot be terminated."""
    part, topic_id = termination.part, TopicId(termination.part.topic_id)
    topic = view.get(TopicRecord, part.name)
    if topic is None or topic.topic_id != topic_id:
        return _deleted(part)
    closing: dict[int, int] = {each.ledger_id: each.entries for each in closes if each.part.topic_id == topic_id}
    in_the_way = _open_elsewhere(view, part, closing)
    if in_the_way is not None or topic.terminated is not None:
        return in_the_way or topic
    last = _last_entry(view, topic_id, {**termination.ends, **closing})
    return topic.model_copy(update={"terminated": last})


def _problem(
    view: View, part: TopicPart, incarnation: IncarnationId, terminating: Collection[str]
) -> PulsarpyError | None:
    """Return the error because of which a topic can get no ledger; None if it can."""
    topic = view.get(TopicRecord, part.name)
    if topic is None or topic.topic_id != part.topic_id:
        return _deleted(part)
    if topic.terminated is not None or part.topic_id in terminating:
        return TopicTerminatedError(f"Topic {part.name} was terminated and takes no messages: use another topic.")
    own_ledgers = [each.ledger_id for each in view.all(LedgerRecord, part.topic_id) if each.incarnation == incarnation]
    return _open_elsewhere(view, part, own_ledgers)


def _deleted(part: TopicPart) -> PulsarpyError:
    return TopicNotFoundError(f"Topic {part.name} was deleted or re-created: look the topic up again.")


def _open_elsewhere(view: View, part: TopicPart, known: Collection[int]) -> PulsarpyError | None:
    """Return the error for a topic with an open ledger whose id is not in `known`; None if it has none."""
    for ledger in view.all(LedgerRecord, part.topic_id):
        if chain.is_open(view, ledger) and ledger.ledger_id not in known:
            return TopicOwnedElsewhereError(
                f"Ledger {ledger.ledger_id} of {part.name} is open in broker incarnation {ledger.incarnation}: use the "
                "topic through that broker or, if it is dead, recover the incarnation first."
            )
    return None


def _last_entry(view: View, topic_id: TopicId, ends: Mapping[int, int]) -> tuple[int, int]:
    """Return (ledger, entry) of the last entry of a topic without open ledgers; (-1, -1) if it has no entries."""
    for ledger in reversed(view.all(LedgerRecord, topic_id)):
        if ledger.incarnation is None:
            end: int | None = chain.readable_end(view, topic_id, ledger.ledger_id)
        else:
            end = ends.get(ledger.ledger_id, ledger.entries)
        if end:
            return ledger.ledger_id, end - 1
    return -1, -1


class _IdGiver:
    """Allocator of ledger ids from a reserved block or, if the block is used up, from the counter in the metadata."""

    def __init__(self, view: View, block: IdBlock, needed: int) -> None:
        counter = view.get(IdsRecord, "ledger")
        self.free = counter.next_ledger_id if counter is not None else 1
        self._size = max(ID_BLOCK, needed)
        self.block = block
        self.counter: int | None = None

    def above(self, last: int) -> int:
        """Return an id greater than `last`, the id of the chain's last ledger."""
        if self.block.next <= last or self.block.next >= self.block.end:
            self.block = IdBlock(self.free, self.free + self._size)
            self.counter = self.free = self.block.end
        number = self.block.next
        self.block = IdBlock(number + 1, self.block.end)
        return number
