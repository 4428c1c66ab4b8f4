"""Recovery of dead broker incarnations at an operator's request, if necessary with losses.

Readers and writers recover dead brokers without an operator (`dead_brokers`). With this module, an operator can start a
recovery and see its outcome. An operator can also close a journal that cannot be recovered otherwise, because storage
paths that may hold acknowledged entries are lost for good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pulsar_on_spark.ledger.journal.log import LogRecord, copies_of
from pulsar_on_spark.ledger.journal.register import log_record
from pulsar_on_spark.metadata.records import IncarnationRecord, LedgerRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import InvalidArgumentError, PulsarpyError
from pulsar_on_spark.model.ids import IncarnationId, PathId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.topic.catalog.leases import LeaseWatcher
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.chain.chain import is_open
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import OBSERVE_EVERY_S, recover_incarnation

log = logging.getLogger(__name__)

Outcome: TypeAlias = Literal["closed", "alive", "recovered", "closed with losses", "not recovered"]


@dataclass(frozen=True, slots=True)
class RecoveredIncarnation:
    """The outcome of one incarnation's recovery.

    Attributes:
        incarnation: The incarnation's id.
        outcome: "recovered"; "closed" if it was closed before; "alive" if its lease is renewed, so that nothing was
            done; "closed with losses" if paths were given up; "not recovered" (see `problem`).
        last_frame: The last frame of the journal, -1 for a journal without frames; None if it is not CLOSED.
        given_up: Storage paths that were given up, now or earlier, to close the journal.
        topics: Topics that had ledgers open in the incarnation. If paths were given up, entries of these topics may be
            missing.
        problem: The error because of which it could not be recovered; None for other outcomes.
    """

    incarnation: IncarnationId
    outcome: Outcome
    last_frame: int | None
    given_up: tuple[PathId, ...]
    topics: tuple[str, ...]
    problem: str | None = None


def recover_dead(
    root: RootHandle, incarnation: IncarnationId | None = None, give_up: Collection[PathId] = ()
) -> tuple[RecoveredIncarnation, ...]:
    """Recover the incarnations whose leases have run out; each lease is first watched for its duration.

    Args:
        root: The root.
        incarnation: The only incarnation to recover; None for all.
        give_up: Storage paths that are lost for good. They are given up only if the journal cannot be recovered
            otherwise. Then acknowledged entries without a copy on another path are lost.

    Returns:
        The outcome for each incarnation that is not CLOSED, or for the given one.

    Raises:
        InvalidArgumentError: there is no such incarnation; `give_up` is used without an incarnation; or a path to give
            up has none of the incarnation's files.
        MetadataError: the metadata cannot be read.
    """
    view = root.store.view()
    if incarnation is None and give_up:
        raise InvalidArgumentError(
            "Storage paths can only be given up for one incarnation, and none is named: name an incarnation that "
            "`pulsarpy status` lists, or give up no paths."
        )
    chosen = _unclosed(view) if incarnation is None else [_known(view, incarnation, give_up)]
    watcher = settled_leases(root, [record.incarnation for record in chosen if record.state != "CLOSED"])
    return tuple(_recover(root, view, record, watcher, give_up) for record in chosen)


def _unclosed(view: View) -> list[IncarnationRecord]:
    return [record for record in view.all(IncarnationRecord) if record.state != "CLOSED"]


def _known(view: View, incarnation: IncarnationId, give_up: Collection[PathId]) -> IncarnationRecord:
    record = view.get(IncarnationRecord, incarnation)
    if record is None:
        known = ", ".join(each.incarnation for each in _unclosed(view)) or "none"
        raise InvalidArgumentError(
            f"There is no broker incarnation {incarnation!r}: give an incarnation that is not closed ({known})."
        )
    for path in give_up if record.state != "CLOSED" else ():
        if all(copy.path != path for copy in copies_of(log_record(record))):
            raise InvalidArgumentError(
                f"Storage path {path} has no journal file of incarnation {incarnation}: give up a path that has one."
            )
    return record


def settled_leases(root: RootHandle, incarnations: Collection[str]) -> LeaseWatcher:
    """Watch the leases until it is certain for each of them if it has run out, and return the watcher.

    This takes at most the duration of a lease.
    """
    watcher = LeaseWatcher(root.broker_leases())
    watcher.observe_leases()
    while any(watcher.lease_state(each) is LeaseState.UNKNOWN for each in incarnations):
        time.sleep(OBSERVE_EVERY_S / 5)
        watcher.observe_leases()
    return watcher


def _recover(
    root: RootHandle, view: View, record: IncarnationRecord, watcher: LeaseWatcher, give_up: Collection[PathId]
) -> RecoveredIncarnation:
    incarnation = IncarnationId(record.incarnation)
    topics = _topics(view, incarnation)
    if record.state == "CLOSED":
        return _closed(incarnation, "closed", log_record(record), topics)
    if watcher.lease_state(incarnation) is not LeaseState.EXPIRED:
        return RecoveredIncarnation(incarnation, "alive", None, (), topics)
    try:
        return _closed(incarnation, "recovered", recover_incarnation(root, incarnation), topics)
    except (PulsarpyError, OSError) as error:
        if not give_up:
            return RecoveredIncarnation(incarnation, "not recovered", None, (), topics, str(error))
        log.warning("%s Storage paths %s are given up.", error, ", ".join(map(str, sorted(give_up))))
    try:
        return _closed(
            incarnation, "closed with losses", recover_incarnation(root, incarnation, give_up=give_up), topics
        )
    except (PulsarpyError, OSError) as error:
        return RecoveredIncarnation(incarnation, "not recovered", None, (), topics, str(error))


def _closed(
    incarnation: IncarnationId, outcome: Outcome, record: LogRecord, topics: tuple[str, ...]
) -> RecoveredIncarnation:
    return RecoveredIncarnation(incarnation, outcome, record.last_frame, record.given_up, topics)


def _topics(view: View, incarnation: IncarnationId) -> tuple[str, ...]:
    """Return the names of topics and partitions with a ledger that is open in the incarnation, sorted."""
    names = {topic.topic_id: topic.name for topic in view.all(TopicRecord)}
    found = {
        ledger.topic_id
        for ledger in view.all(LedgerRecord)
        if ledger.incarnation == incarnation and is_open(view, ledger)
    }
    return tuple(sorted(names.get(topic_id, topic_id) for topic_id in found))
