"""Reader of the tail: acknowledged entries that are not sealed yet, read without contacting their broker.

    read the main table -> open the journal files that it names -> read the main table again, until it names no others
    -> scan the files

Files are opened before the metadata are read. So if a file was deleted before it was opened, the metadata show that its
entries are sealed. Entry ids of a ledger are dense, so gaps are detected: a gap is scanned again, and a lasting gap is
an error, never skipped silently. Only entries that a header or record proves to be acknowledged are readable, and once
readable they stay so for a `Tail`.

A journal on the disks of another host cannot be read here by design: its topics then end at their last sealed entry.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pulsar_on_spark.ledger.journal.log import LogRecord, LogState
from pulsar_on_spark.ledger.journal.log_index import GapError
from pulsar_on_spark.ledger.journal.register import log_record
from pulsar_on_spark.ledger.journal.sealing import is_unfinished
from pulsar_on_spark.metadata.records import IncarnationRecord, LedgerRecord, SealRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import DataLossError
from pulsar_on_spark.model.ids import IncarnationId, Position
from pulsar_on_spark.storage.loss import unreachable
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.journal_scan import JournalScan
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import TailView, TopicTail, UnsealedSegment
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import DeadBrokers
from pulsar_on_spark.topic.managed_ledger.incarnation.hosts import other_host

log = logging.getLogger(__name__)

MAX_ROUNDS = 20
"""Maximum number of reads of the main table in one pass, which then continues with the files that are open."""
MAX_PASSES = 10
"""Number of scans after which a gap counts as lasting, about three seconds."""
REACH_S = 20.0
"""Longest wait for entries that were readable before: a dead broker may have to be recovered first."""


@dataclass(frozen=True, slots=True)
class _Ledger:
    """A broker's ledger that may have entries which are only in the journal."""

    part: TopicPart
    record: LedgerRecord
    sealed_end: int


@dataclass(slots=True)
class _Unfinished:
    """Ledgers that are not fully sealed, by incarnation; None before the first search.

    `of` is the version of the view, and the topics, of the search.
    """

    of: tuple[object, ...] = ()
    ledgers: Mapping[IncarnationId, Sequence[_Ledger]] | None = None
    hidden: Mapping[str, str] = field(default_factory=dict)
    """The hosts, by topic id, of journals that cannot be read here."""


class Tail:
    """View of the journals for one reader. Not thread-safe.

    Args:
        root: The root.
        fail_on_data_loss: True if a lasting gap is an error. If False, all other entries are readable, and the plan of
            a read lists the missing entries.
        sealed_only: True to read no journal, for readers whose tasks may run on any host.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        root: RootHandle,
        *,
        fail_on_data_loss: bool = True,
        sealed_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sealed_only = sealed_only
        self._root = root
        self._fail_on_data_loss = fail_on_data_loss
        self._clock = clock
        self._scans: dict[IncarnationId, JournalScan] = {}
        self._records: dict[IncarnationId, tuple[IncarnationRecord, LogRecord]] = {}
        self._brokers = DeadBrokers(root, clock)
        self._unfinished = _Unfinished()
        self._elsewhere: set[IncarnationId] = set()

    def read_view(
        self,
        parts: Sequence[TopicPart],
        view: View | None = None,
        *,
        settle: bool = False,
        reach: Mapping[str, Position] | None = None,
    ) -> View:
        """Read the main table and the journals' entries of these topics; dead brokers' journals are recovered first.

        Args:
            parts: The topics.
            view: A view that was read after the last call; None to read the main table.
            settle: True to wait, for one lease's duration at most, if a broker seems to be dead.
            reach: Positions by topic id up to which entries were readable before. Until they are readable again, every
                copy is tried, for up to `REACH_S` seconds.

        Returns:
            A view that includes the readable entries of the journals.

        Raises:
            DataLossError: acknowledged entries are in no journal file and not sealed, and `fail_on_data_loss` is set.
            CopiesUnreachableError: an unreachable copy may have missing entries.
            MetadataError, StorageError: the root cannot be read.
        """
        view = view or self._fresh()
        needed = self._needed(view, parts)
        recovered = (self._brokers.recover_or_wait if settle else self._brokers.recover_dead_logs)(view, list(needed))
        if recovered:
            view = self._fresh()
        for scan in self._scans.values():
            scan.forget_failures()  # files that were unreachable, or on unknown paths, may be readable now
        end_s = self._clock() + REACH_S
        every_copy = False
        while True:
            scanned = self._look(parts, view, every_copy=every_copy)
            short = [topic for topic, position in (reach or {}).items() if chain.read_limit(scanned, topic) < position]
            needed = self._needed(scanned, parts)
            hidden = [topic for topic in short if topic in self._unfinished.hidden]
            if not short or not (needed or hidden) or self._clock() > end_s:
                if hidden:
                    raise unreachable("A message that was readable before", self._where(hidden))
                if short:
                    self._require_reachable("An entry that was readable before", needed)
                return scanned  # entries that no journal has are lost; the plan of the read reports them
            if every_copy:
                time.sleep(0.1)
                self._brokers.recover_dead_logs(scanned, list(self._needed(scanned, parts)))
                view = self._fresh()
            every_copy = True

    def close(self) -> None:
        """Close all files."""
        for scan in self._scans.values():
            scan.close()
        self._scans.clear()

    # -- one scan ------------------------------------------------------------------------------------------------------

    def _look(self, parts: Sequence[TopicPart], view: View, *, every_copy: bool) -> View:
        """Scan the journals of the topics, and return a view with their readable entries."""
        for number in range(MAX_PASSES):
            view = self._opened(parts, view)
            needed = self._needed(view, parts)
            if not needed and not self._unfinished.hidden:
                return view
            is_last = number == MAX_PASSES - 1
            strict = not is_last or self._fail_on_data_loss
            try:
                for incarnation in needed:
                    self._scans[incarnation].scan(every_copy=every_copy or number > 0)
                if not strict and any(self._scans[incarnation].reader.walk.is_stuck for incarnation in needed):
                    # The missing frame may have been sealed, and its files deleted, just before they were opened.
                    view = self._opened(parts, self._fresh())
                    needed = self._needed(view, parts)
                    for incarnation in needed:
                        self._scans[incarnation].scan(every_copy=True, skip=True)
                hidden = frozenset(self._unfinished.hidden)
                return TailView.over(view, self._tails(view, needed, strict=strict), hidden)
            except GapError as gap:
                if is_last:
                    stuck = [incarnation_ for incarnation_ in needed if self._scans[incarnation_].reader.walk.is_stuck]
                    self._require_reachable(f"Acknowledged data ({gap})", stuck)
                    raise DataLossError(
                        f"Acknowledged messages are lost: {gap}, neither sealed nor good in a journal file on any "
                        "storage path; to read on without them, set option failOnDataLoss to false."
                    ) from gap
                log.info("A gap in the tail is scanned again: %s", gap)
            time.sleep(min(0.01 * 2**number, 0.5))
            view = self._fresh()
            for scan in self._scans.values():
                scan.forget_failures()
        raise AssertionError("unreachable")

    def _require_reachable(self, what: str, incarnations: Iterable[IncarnationId]) -> None:
        """Check that no unreachable copy may have entries that these journals lack. `what` names the entries in errors.

        Raises:
            CopiesUnreachableError: an unreachable copy may have missing entries.
        """
        causes = [cause for incarnation in incarnations for cause in self._scans[incarnation].reader.unreachable()]
        if causes:
            raise unreachable(what, " ".join(causes))

    def _opened(self, parts: Sequence[TopicPart], view: View) -> View:
        """Return a view that was read after all journal files that it names were opened."""
        for rounds_left in reversed(range(MAX_ROUNDS)):
            needed = self._needed(view, parts)
            self._drop_others(needed)
            scans = [self._scan_of(view, incarnation, ledgers) for incarnation, ledgers in needed.items()]
            for scan in scans:
                scan.reader.open_files()
            if not rounds_left or all(scan.reader.walk.is_ready for scan in scans):
                break
            view = self._fresh()
        return view

    def _scan_of(self, view: View, incarnation: IncarnationId, ledgers: Sequence[_Ledger]) -> JournalScan:
        """Return the journal's scan, updated with this view."""
        scan = self._scans.get(incarnation)
        if scan is None:
            scan = self._scans[incarnation] = JournalScan(incarnation, self._root.current_journal_paths)
        seal = view.get(SealRecord, incarnation)
        sealed_before = 0 if seal is None else seal.sealed_before
        record = self._record(view, incarnation)
        scan.main_read(record, sealed_before, [ledger.record.ledger_id for ledger in ledgers])
        return scan

    def _tails(
        self, view: View, needed: Mapping[IncarnationId, Sequence[_Ledger]], *, strict: bool
    ) -> dict[str, TopicTail]:
        segments: dict[str, list[UnsealedSegment]] = {}
        ends: dict[str, dict[int, int]] = {}
        for incarnation, ledgers in needed.items():
            scan, record = self._scans[incarnation], self._record(view, incarnation)
            if strict and scan.reader.walk.is_stuck:
                raise GapError(f"frame {scan.reader.walk.next} of broker incarnation {incarnation}")
            for ledger in ledgers:
                topic_id = ledger.part.topic_id
                readable, end = _readable(ledger, scan, record, strict=strict)
                segments.setdefault(topic_id, []).extend(readable)
                if ledger.record.entries is None and record.state is LogState.CLOSED:
                    ends.setdefault(topic_id, {})[ledger.record.ledger_id] = end
        return {
            topic_id: TopicTail(tuple(sorted(readable, key=lambda segment: segment.record_id)), ends.get(topic_id, {}))
            for topic_id, readable in segments.items()
        }

    # -- ledgers to scan -----------------------------------------------------------------------------------------------

    def _hidden_by(self, view: View, incarnation: IncarnationId) -> str | None:
        """Return the name of the host with a journal that this reader does not read; None if it reads the journal."""
        return "its broker's host" if self._sealed_only else other_host(view, incarnation)

    def _where(self, topics: Iterable[str]) -> str:
        hosts = sorted({self._unfinished.hidden[topic] for topic in topics})
        return f"It is in a journal on {', '.join(hosts)}, and is read once it is sealed: try again."

    def _fresh(self) -> View:
        return self._root.store.view(durable=True)

    def _needed(self, view: View, parts: Sequence[TopicPart]) -> Mapping[IncarnationId, Sequence[_Ledger]]:
        """Find the ledgers that are open or not fully sealed, by the incarnation whose journal has their entries."""
        of = (view.version, tuple(part.topic_id for part in parts))
        if self._unfinished.ledgers is None or self._unfinished.of != of:
            base = view.base if isinstance(view, TailView) else view
            unfinished = _unfinished(base, parts)
            hosts = {each: host for each in unfinished if (host := self._hidden_by(base, each)) is not None}
            for each in hosts.keys() - self._elsewhere:
                log.info("The journal %s on %s is read once it is sealed.", each, hosts[each])
                self._elsewhere.add(each)
            hidden = {ledger.part.topic_id: host for each, host in hosts.items() for ledger in unfinished[each]}
            here = {each: ledgers for each, ledgers in unfinished.items() if each not in hosts}
            self._unfinished = _Unfinished(of, here, hidden)
        return self._unfinished.ledgers or {}

    def _record(self, view: View, incarnation: IncarnationId) -> LogRecord:
        row = view.get(IncarnationRecord, incarnation)
        assert row is not None, "a ledger is unfinished only if its incarnation is known"
        cached = self._records.get(incarnation)
        if cached is None or cached[0] is not row:
            cached = self._records[incarnation] = (row, log_record(row))
        return cached[1]

    def _drop_others(self, needed: Mapping[IncarnationId, Sequence[_Ledger]]) -> None:
        for incarnation in [each for each in self._scans if each not in needed]:
            self._scans.pop(incarnation).close()
            self._records.pop(incarnation, None)


def _readable(
    ledger: _Ledger, scan: JournalScan, record: LogRecord, *, strict: bool
) -> tuple[tuple[UnsealedSegment, ...], int]:
    """List the unsealed segments of a ledger, with the id after its last readable entry.

    Raises:
        GapError: entries before its end are missing, and `strict` is set.
    """
    ledger_record = ledger.record
    entries = ledger_record.entries if record.state is LogState.CLOSED else None
    try:
        return scan.readable(ledger_record.topic_id, ledger_record.ledger_id, ledger.sealed_end, entries, strict=strict)
    except GapError as gap:
        raise GapError(f"{gap} of {ledger.part.name}") from gap


def _unfinished(view: View, parts: Sequence[TopicPart]) -> dict[IncarnationId, list[_Ledger]]:
    by_incarnation: dict[IncarnationId, list[_Ledger]] = {}
    for part in parts:
        for ledger in view.all(LedgerRecord, part.topic_id):
            if ledger.incarnation is None or view.get(IncarnationRecord, ledger.incarnation) is None:
                continue
            sealed_end = chain.readable_end(view, part.topic_id, ledger.ledger_id)
            if is_unfinished(ledger.entries, sealed_end):
                by_incarnation.setdefault(IncarnationId(ledger.incarnation), []).append(
                    _Ledger(part, ledger, sealed_end)
                )
    return by_incarnation
