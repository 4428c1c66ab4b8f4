"""The storage side of a broker incarnation (one run of a broker): its lease, its journal, and its topics' open ledgers.

    start         acquire the lease, commit the incarnation's record, open the journal
    open, append  open a topic's ledger at its first publish; append entries to the journal in the order of their ids
    close         close a ledger whose entries are all acknowledged, if its topic is unloaded or idle, if the ledger is
                  full, or if Spark has attached a later ledger
    stop          close all ledgers and the log, and release the lease; any process can recover a killed incarnation

Commits are grouped: requests that arrive during a commit join the next one. All methods must be called in one event
loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pulsar_on_spark.ledger.journal.codec_encode import Payload
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.journal import Journal
from pulsar_on_spark.ledger.journal.log import FrameNumber
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.ledger.journal.sinks import EntrySink
from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.model.errors import JournalFencedError, PulsarpyError
from pulsar_on_spark.model.ids import EntryId, IncarnationId, TopicId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.placement import preferred
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.leases import DEFAULT_DURATION_S, LeaseKeeper, longest_pause_s
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.incarnation.attached_behind import AttachedBehind
from pulsar_on_spark.topic.managed_ledger.incarnation.ledger_commits import LedgerCommits
from pulsar_on_spark.topic.managed_ledger.incarnation.ledgers import ClosedLedger, LedgerCommit, Termination
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import Appended, OpenLedger
from pulsar_on_spark.topic.managed_ledger.incarnation.path_news import PathNews
from pulsar_on_spark.topic.managed_ledger.incarnation.roll_over import RollOver, grown

log = logging.getLogger(__name__)

POLL_S = 1.0
"""Maximum seconds between two polls of the metadata; an incarnation that cannot poll does not renew its lease."""
CLOSE_IDLE_S = 600.0
"""Seconds without appends after which a ledger is closed."""


class Incarnation:
    """A running broker incarnation: its lease, journal and open ledgers. `start` creates it."""

    def __init__(
        self,
        root: RootHandle,
        entry_sink: EntrySink,
        on_ended: Callable[[str], None],
        quorum: Quorum,
        limits: JournalLimits | None,
        lease_duration_s: float,
        roll_over: RollOver,
    ) -> None:
        self.id = IncarnationId(uuid.uuid4().hex)
        self.quorum = quorum
        self._on_ended = on_ended
        self._polled_s = time.monotonic()
        self._is_stopping = False
        self._poll_every_s = min(POLL_S, lease_duration_s / 3)
        self._lease = LeaseKeeper(
            root.broker_leases(),
            self.id,
            lease_duration_s,
            may_renew=lambda: self._is_stopping or time.monotonic() - self._polled_s < lease_duration_s,
        )
        paths = preferred(root.writable_journal_paths(root.store.view()), self.id)
        root.announce_journals(paths)
        self._path_news = PathNews(root, paths)
        self.journal = Journal(
            LogRegister(root.store, self.id),
            paths,
            quorum,
            entry_sink,
            on_ended=self._end,
            mark_failed=self._path_news.mark_failed,
            limits=limits,
        )
        self._commits = LedgerCommits(root.store, self.id)
        self._ledgers: dict[TopicId, OpenLedger] = {}
        self._retired: list[OpenLedger] = []
        self._attached_behind = AttachedBehind()
        self._roll_over = roll_over
        self._asked_to_look = asyncio.Event()
        self._switching = asyncio.Lock()
        """Held while ledgers of topics are replaced, and while a topic is terminated."""
        self._polling: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        """The last task that closes and switches ledgers; while it runs, polls do not look for ledgers to switch."""
        self._reason: str | None = None
        self._trimmed_before: FrameNumber = 0

    @classmethod
    async def start(
        cls,
        root: RootHandle,
        entry_sink: EntrySink,
        *,
        on_ended: Callable[[str], None],
        quorum: Quorum | None = None,
        limits: JournalLimits | None = None,
        lease_duration_s: float = DEFAULT_DURATION_S,
        roll_over: RollOver | None = None,
    ) -> Incarnation:
        """Start an incarnation with a new id, a lease and a journal, and return it when it can accept entries.

        Args:
            root: The root.
            entry_sink: Sink of the journal. It gets an `Appended` for each `append`, and must pass it to
                `settle_entries`.
            on_ended: Called with the reason when the started incarnation ends unexpectedly. The process must then stop
                serving, and exit.
            quorum: The quorum of the journal; None for the root's.
            limits: The bounds of the journal; None for the defaults.
            lease_duration_s: Seconds for which other processes wait for a renewal before they recover this incarnation.
            roll_over: The rules by which topics switch to new ledgers; None for Pulsar's defaults.

        Raises:
            NotEnoughCopiesError: journal files can be created on too few storage paths.
            StoragePathError: a storage path is on a network file system.
            StorageError: the lease cannot be written.
            JournalFencedError: the incarnation's record cannot be committed.
        """
        rolls = roll_over or RollOver()
        made = cls(root, entry_sink, on_ended, quorum or root.quorum, limits, lease_duration_s, rolls)
        # The lease comes first, because an incarnation without a lease counts as dead.
        await asyncio.to_thread(made._lease.start, ())
        try:
            await made.journal.open()
            made._require_alive()
        except BaseException:
            made._reason = made._reason or "its start failed"
            made.journal.abandon_log()
            made._lease.stop()
            raise
        made._polling = asyncio.create_task(made._poll())
        return made

    async def stop(self) -> None:
        """Close all ledgers and the log, and release the lease, which is renewed meanwhile without polls.

        The caller limits the time, because the lease would be renewed for as long as the call takes.

        Raises:
            JournalFencedError: the incarnation is over already.
        """
        self._is_stopping = True
        await self._end_polling()
        try:
            await self.close_ledgers(list(self._ledgers))
            await self.journal.close()
        finally:
            await asyncio.to_thread(self._lease.stop)

    def lease_pause_s(self, since_s: float) -> float:
        """Return the longest time without a known renewal of the lease that has ended after `since_s`, or not yet.

        Args:
            since_s: A time on the monotonic clock; the result is longer than it was if this is long ago.
        """
        return longest_pause_s(self._lease.renewals_s, since_s, time.monotonic())

    # -- ledgers -------------------------------------------------------------------------------------------------------

    @property
    def ledgers(self) -> dict[TopicId, OpenLedger]:
        """The open ledger of each topic that has one, by topic id."""
        return self._ledgers

    async def open_ledgers(self, parts: Sequence[TopicPart]) -> dict[TopicId, PulsarpyError]:
        """Open a ledger for each topic without an open ledger in this incarnation.

        Returns:
            By topic id, the error of each topic for which no ledger could be opened.

        Raises:
            JournalFencedError: the incarnation is over.
            MetadataError: the commit failed.
        """
        await self._commits.no_others(parts)
        missing = {TopicId(part.topic_id): part for part in parts if part.topic_id not in self._ledgers}
        if not missing:
            return {}
        self._require_alive()
        committed = await self._commits.open(list(missing.values()))
        for topic_id in missing.keys() & committed.opened.keys():
            self._ledgers[topic_id] = OpenLedger(missing[topic_id], committed.opened[topic_id])
        return {topic_id: committed.refused[topic_id] for topic_id in missing.keys() & committed.refused.keys()}

    async def close_ledgers(self, topic_ids: Sequence[TopicId]) -> None:
        """Wait until all entries of the topics' ledgers have an outcome, then close these ledgers.

        Drained ledgers that an earlier attempt could not close are closed, too. Errors are those of `open_ledgers`.
        """
        self._require_alive()
        retired = self._retire(topic_ids)
        for ledger in retired:
            await ledger.wait_until_drained()
        await self._close_retired()

    @property
    def unclosed_topics(self) -> list[str]:
        """Full names of the topics with a ledger that is not closed yet, so that no other broker can serve them."""
        return [ledger.part.name for ledger in (*self._ledgers.values(), *self._retired)]

    def retire_ledger(self, topic_id: TopicId) -> None:
        """Stop appending to a topic's ledger; a poll closes the ledger when all its entries have an outcome."""
        self._retire([topic_id])

    async def terminate_topic(self, part: TopicPart, ends: Mapping[int, int]) -> tuple[int, int]:
        """Terminate a topic, and close its ledger in the same commit.

        Args:
            part: The topic. The caller must append no more entries to it.
            ends: See `Termination`.

        Returns:
            (ledger id, entry id) of the topic's last message; (-1, -1) if there is none.

        Raises:
            JournalFencedError: the incarnation is over.
            TopicNotFoundError: the topic was deleted.
            TopicOwnedElsewhereError: a ledger of the topic is open in another incarnation.
            MetadataError: the commit failed, or its outcome is unknown.
        """
        async with self._switching:
            topic_id = TopicId(part.topic_id)
            self._retire([topic_id])
            retired = [each for each in self._retired if each.part.topic_id == topic_id]
            for ledger in retired:
                await ledger.wait_until_drained()
            committed = await self._commit(
                closes=[ledger.closed() for ledger in retired], terminations=[Termination(part, ends)]
            )
            self._retired = [ledger for ledger in self._retired if ledger not in retired]
        if topic_id in committed.refused:
            raise committed.refused[topic_id]
        return committed.terminated[topic_id]

    async def wait_until_drained(self, topic_id: TopicId) -> None:
        """Wait until the outcomes of all entries of a topic are known. No entries may be appended during the wait."""
        open_ledger = self._ledgers.get(topic_id)
        for ledger in [*([open_ledger] if open_ledger is not None else []), *self._retired]:
            if ledger.part.topic_id == topic_id:
                await ledger.wait_until_drained()

    def _retire(self, topic_ids: Sequence[TopicId]) -> list[OpenLedger]:
        """Stop appending to the topics' ledgers, queue the ledgers for closing, and return them."""
        retired = [self._ledgers.pop(topic_id) for topic_id in topic_ids if topic_id in self._ledgers]
        for ledger in retired:
            ledger.retire(
                self._asked_to_look
            )  # when drained, poll at once: it can be closed, which shows later entries
        self._retired += retired
        return retired

    async def _close_retired(self) -> None:
        """Close the retired ledgers whose entries all have an outcome; other ledgers wait for a later call."""
        retired = [ledger for ledger in self._retired if not ledger.outstanding]
        if retired or self._commits.has_strays:
            await self._commit(closes=[ledger.closed() for ledger in retired])
            self._retired = [ledger for ledger in self._retired if ledger not in retired]

    async def _commit(
        self, closes: Sequence[ClosedLedger] = (), terminations: Sequence[Termination] = ()
    ) -> LedgerCommit:
        self._require_alive()
        return await self._commits.commit((), closes, terminations)

    # -- appending -----------------------------------------------------------------------------------------------------

    @property
    def can_append(self) -> bool:
        """True while entries are accepted; the sinks' `on_journal_room` is called when entries are accepted again."""
        return self.journal.can_add

    def fitting(self, payloads: Sequence[Payload]) -> int:
        """Return how many of these entries can be appended at once, as `Journal.fitting`."""
        return self.journal.fitting(payloads)

    def append(
        self,
        topic_id: TopicId,
        message_count: int,
        publish_time_ms: int,
        payloads: Sequence[Payload],
        context: object = None,
    ) -> EntryId:
        """Append entries to the topic's open ledger, and return the first one's id.

        The sink of entries gets their outcome.

        Args:
            topic_id: A topic with an open ledger (`open_ledgers`).
            message_count: The number of messages in each entry.
            publish_time_ms: The time at which the broker received the entries, in milliseconds since 1970.
            payloads: The entries as received, as many as are `fitting`; they must not change until the outcome is
                known.
            context: Any object; the sink gets it with the outcome.

        Raises:
            KeyError: the topic has no open ledger; idleness may have closed it.
            JournalUnavailableError, InvalidArgumentError: as for `Journal.add_entries`; nothing was appended.
        """
        ledger = self._ledgers[topic_id]
        first, entries = EntryId(ledger.next), len(payloads)
        appended = Appended(ledger, first, entries, context)
        self.journal.add_entries(ledger.ledger_id, first, message_count, publish_time_ms, payloads, appended)
        ledger.next += entries
        ledger.bytes += sum(map(len, payloads))
        ledger.outstanding += entries
        ledger.used_s = time.monotonic()
        return first

    def append_cursor(self, subscription: bytes, record: bytes, context: object = None) -> None:
        """Append a cursor record; `journal.cursor_sink` gets its outcome. Errors are those of `Journal.add_cursor`."""
        self.journal.add_cursor(subscription, record, context)

    def forget_trimmed_frames(self, before: FrameNumber) -> None:
        """Remove journal frames below `before` from the log's record. Their files must be deleted already.

        A call with the same or a lower frame than before does nothing.
        """
        if before > self._trimmed_before:
            self._trimmed_before = before
            self.journal.forget_trimmed_frames(before)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _end(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            self._ledgers.clear()
            self._lease.stop()
            if self._polling is not None:
                self._on_ended(reason)

    def _require_alive(self) -> None:
        if self._reason is not None:
            raise JournalFencedError(f"Broker incarnation {self.id} is over ({self._reason}): restart the broker.")

    # -- changes of the metadata ---------------------------------------------------------------------------------------

    def scan_metadata(self) -> None:
        """Poll the metadata at once, because Spark has attached a ledger to a topic."""
        self._asked_to_look.set()

    async def _poll(self) -> None:
        while self._reason is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_every_s):  # Python 3.11's `wait_for` may miss being cancelled
                    if self._keeping is not None:
                        await asyncio.wait([self._keeping])
                    await self._asked_to_look.wait()
            try:
                await self._look()
            except (PulsarpyError, OSError) as error:
                log.warning(
                    "Incarnation %s cannot read the metadata: %s", self.id, error, extra={"incarnation": self.id}
                )
            except Exception:  # a defect; if it lasts, the lease runs out
                log.exception("Incarnation %s cannot read the metadata", self.id, extra={"incarnation": self.id})

    async def _look(self) -> None:
        """Look at the metadata, and begin to close and switch the ledgers for which that is due.

        Their commits are made in a task of their own, because the lease is renewed only while polls succeed, and
        commits that conflict with other writers may take longer than the lease.
        """
        is_keeping = self._keeping is not None and not self._keeping.done()
        if not is_keeping:
            self._asked_to_look.clear()
        record = await asyncio.to_thread(self._read_metadata, scan=not is_keeping)
        if record is None or record.state != "OPEN":
            self._end(f"incarnation {self.id} was taken over")
            return
        self._polled_s = time.monotonic()
        self._path_news.tell(self.journal)
        if not is_keeping:
            self._keeping = asyncio.create_task(self._keep_ledgers())

    async def _keep_ledgers(self) -> None:
        """Close and switch the ledgers for which that is due."""
        try:
            await self._close_idle(time.monotonic())
            if not self._switching.locked():
                await self._switch(time.monotonic())
        except (PulsarpyError, OSError) as error:
            log.warning(
                "Incarnation %s cannot close or switch ledgers: %s", self.id, error, extra={"incarnation": self.id}
            )
        except Exception:  # a defect; the task after the next poll tries again
            log.exception("Incarnation %s cannot close or switch ledgers", self.id, extra={"incarnation": self.id})

    async def _end_polling(self) -> None:
        for task in (self._polling, self._keeping):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _close_idle(self, now_s: float) -> None:
        idle = [topic for topic, ledger in self._ledgers.items() if now_s - ledger.used_s > CLOSE_IDLE_S]
        self._retire(idle)
        await self._close_retired()

    def _read_metadata(self, *, scan: bool) -> IncarnationRecord | None:
        """Return this incarnation's record; None if it was removed. It is called in a worker thread.

        It finds changed paths, too, and if `scan` is True, the ledgers to switch.
        """
        view = self._path_news.fresh_view()
        if scan:
            self._attached_behind.scan_changes(view, list(self._ledgers))
        return view.get(IncarnationRecord, self.id)

    async def _switch(self, now_s: float) -> None:
        """Switch topics to new ledgers where that is due: commit the new ledgers, use them, then close the old ones."""
        due = self._attached_behind.due(self._ledgers, now_s)
        due += grown(self._ledgers, self._roll_over, now_s, besides=due)
        if not due:
            return
        async with self._switching:
            self._require_alive()
            committed = await self._commits.open(due)
            for part in due:
                topic_id = TopicId(part.topic_id)
                self._attached_behind.on_switch_requested(topic_id)
                if topic_id not in committed.opened:
                    continue
                opened = OpenLedger(part, committed.opened[topic_id])
                if topic_id in self._ledgers:
                    self._retire([topic_id])
                    self._ledgers[topic_id] = opened
                    self._attached_behind.switched(topic_id, now_s)
                else:  # the topic was unloaded meanwhile
                    self._retired.append(opened)
        await self._close_retired()
