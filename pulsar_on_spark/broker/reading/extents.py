"""A topic's chain from the metadata: its ledgers, the readable end of each, and whether each has ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_on_spark.metadata.records import LedgerRecord, SegmentRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import IncarnationId, LedgerId, TopicId
from pulsar_on_spark.topic.managed_ledger.chain.chain import is_open, ledger_end, readable_end
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerExtent


class UnknownEndError(Exception):
    """A ledger was closed by force and has no close row yet, so that only its journal shows its length."""


@dataclass(frozen=True, slots=True)
class ChainShape:
    """The readable part of a topic according to the metadata.

    Attributes:
        extents: The ledgers in order, up to and including the first that has not ended; later ones are not visible.
        open_in: The id of the incarnation that has the last ledger open; None if that ledger is Spark's or has ended.
    """

    extents: tuple[LedgerExtent, ...] = ()
    open_in: IncarnationId | None = None


NO_CHAIN = ChainShape()


def chain_shape(view: View, topic_id: TopicId, known: ChainShape = NO_CHAIN) -> ChainShape:
    """Return the readable part of a topic according to the metadata.

    Args:
        view: The metadata; a `TailView` includes the acknowledged entries in journals.
        topic_id: The topic. An open ledger ends where the view ends; only its broker knows later entries.
        known: An earlier result; ledgers that had ended are not read again.

    Raises:
        UnknownEndError: a ledger's length is unknown; call again with a `TailView`.
    """
    kept = _kept(view, topic_id, known.extents)
    after = kept[-1].ledger if kept else 0
    newest = view.newest(LedgerRecord, topic_id)
    extents: list[LedgerExtent] = []
    for ledger in view.since(LedgerRecord, topic_id, f"{topic_id}/{after + 1:020d}"):
        if ledger.ledger_id <= after:
            continue
        extent = _extent(view, ledger, is_last=ledger is newest)
        extents.append(extent)
        if not extent.ended:
            open_in = None if ledger.incarnation is None else IncarnationId(ledger.incarnation)
            return ChainShape((*kept, *extents), open_in)
    return ChainShape((*kept, *extents))


def _kept(view: View, topic_id: TopicId, known: tuple[LedgerExtent, ...]) -> tuple[LedgerExtent, ...]:
    """Return the known ledgers that had ended; none if the chain was trimmed since, which happens at its front only."""
    oldest = view.oldest(LedgerRecord, topic_id)
    if not known or oldest is None or oldest.ledger_id != known[0].ledger:
        return ()
    if known[0].first != min(_first_entry(view, topic_id, known[0].ledger), known[0].end):
        return ()
    return known if known[-1].ended else known[:-1]


def _extent(view: View, ledger: LedgerRecord, *, is_last: bool) -> LedgerExtent:
    end: int | None = readable_end(view, ledger.topic_id, ledger.ledger_id)
    if ledger.incarnation is None:
        ended = not is_last
    elif is_open(view, ledger):
        ended = False
    else:
        end, ended = ledger_end(view, ledger), True
        if end is None:
            raise UnknownEndError(f"Ledger {ledger.ledger_id} of incarnation {ledger.incarnation} has no close row.")
    assert end is not None
    first = min(_first_entry(view, TopicId(ledger.topic_id), ledger.ledger_id), end)
    return LedgerExtent(LedgerId(ledger.ledger_id), end, ended, first)


def _first_entry(view: View, topic_id: TopicId, ledger_id: int) -> int:
    """Return the id of a ledger's first entry that is not trimmed; 0 unless the topic's oldest segment is in it."""
    oldest = view.oldest(SegmentRecord, topic_id)
    return oldest.first_entry if oldest is not None and oldest.ledger_id == ledger_id else 0
