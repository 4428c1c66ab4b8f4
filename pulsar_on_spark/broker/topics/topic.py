"""A loaded topic: its producers, its subscriptions, and the ledger that it has open in the broker's journal."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from pulsar_on_spark.broker.producing.producer import Producer, Published
from pulsar_on_spark.broker.producing.producers import Producers
from pulsar_on_spark.broker.producing.publishing import Waiting
from pulsar_on_spark.broker.producing.replicated import received
from pulsar_on_spark.broker.producing.topic_dedup import TopicDedup
from pulsar_on_spark.broker.producing.topic_producers import TopicProducers
from pulsar_on_spark.broker.runtime.journals import is_same
from pulsar_on_spark.broker.runtime.peer import refusal_of_one_entry
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.subscriptions.publish_credit import PublishCredit
from pulsar_on_spark.broker.subscriptions.subscription_limits import SubscriptionLimits
from pulsar_on_spark.broker.subscriptions.topic_subscriptions import TopicSubscriptions
from pulsar_on_spark.broker.topics.topic_parts import TopicParts
from pulsar_on_spark.broker.topics.topic_policies import (
    may_refuse_entries,
    policies_of,
    publish_refusal,
    subscription_limits,
)
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import LedgerRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import (
    JournalUnavailableError,
    PulsarpyError,
    TopicOwnedElsewhereError,
    TopicTerminatedError,
)
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, MessageId, TopicId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.protocol.server import Sent
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.managed_ledger.chain.chain import is_open
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain

log = logging.getLogger(__name__)

DRAIN_S: Final = 10.0
"""Time limit for entries in the journal to be acknowledged before a topic is unloaded or terminated, in seconds."""


class BrokerTopic:
    """A loaded persistent topic, created by `Topics`.

    Attributes:
        name: Its name.
        part: The topic in the catalog.
        topic_id: The topic's id.
        incarnation: The incarnation whose journal stores its entries.
        chain: Its visible chain of ledgers.
        waiting: Runs that the journal has not accepted yet, in order.
        dedup: The topic's deduplication; None if it is off.
        keeps_entries: True to cache stored entries in memory (see `SubscribedTopic`).
        published: The counters of published messages since it was loaded.
        policies: Its effective policies.
        terminated: Ledger and entry id of the last message of a terminated topic, (-1, -1) if it has no message; None
            if the topic is not terminated.
        producers: Its producers.
        subscriptions: Its loaded subscriptions.
    """

    def __init__(
        self,
        name: TopicName,
        part: TopicPart,
        producers: Producers,
        parts: TopicParts,
    ) -> None:
        self.name = name
        self.part = part
        self.topic_id = TopicId(part.topic_id)
        self.chain = LedgerChain()
        self.waiting: deque[Waiting] = deque()
        self.keeps_entries = False
        self.dedup: TopicDedup | None = None
        self.published = Published()
        self.policies = parts.defaults
        self.terminated: tuple[int, int] | None = None
        self.producers = TopicProducers(self, producers, self._commit_epoch, parts.publish_rate)
        self.subscriptions = TopicSubscriptions(self, parts.keeper, parts.reader, SubscriptionLimits())
        self._store = parts.store
        self.incarnation = parts.journals.first.incarnation
        self._journals = parts.journals
        self._path = parts.path
        self._follower = parts.follower
        self._dedups = parts.dedups
        self._defaults = parts.defaults
        self._parts = parts
        self._limits = SubscriptionLimits()
        self._credit = PublishCredit(self.published)
        self._apply_policies()
        self._opening: asyncio.Task[None] | None = None

    @property
    def has_clients(self) -> bool:
        """True if producers or consumers are connected."""
        return not self.producers.is_empty or any(subscription.consumers for subscription in self.subscriptions.all)

    @property
    def is_unused(self) -> bool:
        """True if it has no clients, no loaded subscription and no open ledger, so that it can be unloaded."""
        is_left = self.producers.is_empty and self.subscriptions.is_empty and not self.waiting
        return is_left and self.topic_id not in self.incarnation.ledgers

    @property
    def is_idle(self) -> bool:
        """True if it has no entries, no producers, and no consumers except those that accept any schema."""
        has_entries = self.chain.entries_from(EARLIEST.ledger, EARLIEST.entry) > 0
        consumers = [consumer for subscription in self.subscriptions.all for consumer in subscription.consumers]
        return not has_entries and self.producers.is_empty and all(consumer.takes_any_schema for consumer in consumers)

    async def load(self, view: View) -> None:
        """Load the topic's chain of ledgers, which later views extend, and its deduplication state.

        Raises:
            TopicOwnedElsewhereError: a ledger of the topic is open in another broker's incarnation.
            PulsarpyError: the topic's policies require a journal that cannot be opened; also the errors of
                `ChainFollower.follow_topic` and `DedupStore.load`.
        """
        own = {incarnation.id for incarnation in self._journals}
        were_open = [ledger for ledger in view.all(LedgerRecord, self.topic_id) if is_open(view, ledger)]
        for ledger in were_open:
            if ledger.incarnation not in own:
                raise TopicOwnedElsewhereError(
                    f"Ledger {ledger.ledger_id} of {self.name} is open in broker incarnation {ledger.incarnation}: try "
                    "again after that broker has closed it, or after it is recovered from a dead broker."
                )
        # Close ledgers that an earlier load of this topic left open: their entries would be missing in the chain.
        for incarnation in self._journals:
            await incarnation.wait_until_drained(self.topic_id)
            await incarnation.close_ledgers([])
        self.incarnation = await self._journals.acquire_journal(
            self.topic_id, _quorum(policies_of(view, self.name, self._defaults))
        )
        try:
            # Only a view that is read after these ledgers were closed has their entries.
            self.chain = await self._follower.follow_topic(self.part, self, None if were_open else view)
            self.follow_record(view)
            if self.policies.deduplication:
                self.dedup = await self._dedups.load(self.part, view, self.chain)
                self._apply_policies()
            else:
                await self._dedups.delete_snapshot(self.part, view)
        except BaseException:
            self._follower.unfollow_topic(self.topic_id)
            self._journals.release_journal(self.topic_id)
            raise

    def follow_record(self, view: View) -> None:
        """Apply the topic's current record and policies."""
        record = view.get(TopicRecord, self.name.full)
        if record is not None and record.terminated is not None:
            self._note_terminated(record.terminated)
        policies = policies_of(view, self.name, self._defaults)
        if policies != self.policies or subscription_limits(policies, self._parts.dispatch) != self._limits:
            self.policies = policies
            self._apply_policies()

    @property
    def must_reload(self) -> bool:
        """True if its policies require a reload: deduplication was switched on or off, or another journal is needed."""
        wanted = _quorum(self.policies) or self._journals.first.incarnation.quorum
        is_moved = not is_same(self.incarnation.quorum, wanted)
        return is_moved or self.policies.deduplication != (self.dedup is not None)

    def _apply_policies(self) -> None:
        self.producers.apply_limits(self.policies)
        self._limits = subscription_limits(self.policies, self._parts.dispatch)
        self.subscriptions.apply_limits(self._limits)
        self._credit.update_rates(self._limits.topic_rate, self._limits.subscription_rate)
        if self.dedup is not None:
            self.dedup.core.save_every(self.policies.deduplication_snapshot_interval * 1000)

    async def close(self) -> None:
        """Disconnect all clients, which look the topic up again; entries published before still get their receipts."""
        self.producers.disconnect_all(_unloaded(self.name))
        try:
            await self.subscriptions.close()
        finally:
            self._follower.unfollow_topic(self.topic_id)
            self._journals.release_journal(self.topic_id)

    async def unload(self) -> None:
        """Close the topic after its entries in the journal have their receipts, then close its ledger.

        If the journal cannot acknowledge them, or the metadata cannot be written, the ledger is closed later, and until
        then no other broker can serve the topic (`Incarnation.unclosed_topics`).
        """
        self.producers.hold_producers(_unloaded(self.name))
        try:
            await self._drained()
            await self.close()
            await self.incarnation.close_ledgers([self.topic_id])
        except PulsarpyError as error:
            log.warning(
                "Topic %s is unloaded, but its ledger is closed later: %s", self.name, error, extra={"topic": self.name}
            )
            await self.close()
            self.incarnation.retire_ledger(self.topic_id)

    async def terminate(self) -> MessageId:
        """Terminate the topic, so that it accepts no more messages, and return the id of its last message.

        One commit terminates the topic and closes its ledger; if it fails, producers reconnect. Consumers can read to
        the end.

        Raises:
            JournalUnavailableError: the topic's entries in the journal cannot be acknowledged now.
            PulsarpyError: as `Incarnation.terminate_topic`.
        """
        if self.terminated is None:
            self.producers.hold_producers(_unloaded(self.name))
            try:
                await self._drained()
                self._note_terminated(await self.incarnation.terminate_topic(self.part, self.chain.ends))
            finally:
                if self.terminated is None:
                    self.producers.disconnect_all()
        assert self.terminated is not None
        ledger, entry = self.terminated
        return MessageId(LedgerId(ledger), EntryId(entry), self.part.partition)

    def _note_terminated(self, last: tuple[int, int]) -> None:
        if self.terminated is None:
            self.terminated = last
            self.producers.disconnect_all(
                TopicTerminatedError(f"Topic {self.name} was terminated and takes no messages: use another topic.")
            )
            self._notify_end()

    def _notify_end(self) -> None:
        """Notify subscriptions of the topic's end once its last message is visible."""
        if self.terminated is not None and (self.chain.end.ledger, self.chain.end.entry) > self.terminated:
            self.subscriptions.on_topic_ended()

    async def refuse_producers(self, refusal: PulsarpyError) -> None:
        """Disconnect producers after their outstanding receipts, and refuse new producers with the error `refusal`.

        The refusal lasts until `admit_producers`, or forever if the topic is terminated.
        """
        if self.terminated is None:
            self.producers.hold_producers(refusal)
            try:
                await self._drained()
            except JournalUnavailableError as error:
                log.warning("%s", error, extra={"topic": self.name})
            if self.terminated is None:
                self.producers.disconnect_all(refusal)

    def admit_producers(self) -> None:
        """End the refusal of producers, which reconnect; a terminated topic still refuses them."""
        if self.terminated is None:
            self.producers.disconnect_all()

    async def _drained(self) -> None:
        """Wait until all entries of the topic in the journal have an outcome; the caller has stopped its producers.

        Raises:
            JournalUnavailableError: the wait timed out.
        """
        self._path.drop_waiting(self)
        if self._opening is not None:
            await asyncio.wait([self._opening])
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.incarnation.wait_until_drained(self.topic_id)
        except TimeoutError as error:
            raise JournalUnavailableError(
                f"Entries of {self.name} were not acknowledged in {DRAIN_S:.0f} s: check that enough storage paths are "
                "writable, and try again."
            ) from error

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish_entries(self, producer: Producer, sent: Sent) -> None:
        """Check a run of entries of a producer and pass them to the journal."""
        is_special = sent.marker or producer.info.replication is not None
        if not is_special and self.dedup is None and not may_refuse_entries(self.policies):
            self._publish_run(producer, sent)
            return
        for one in sent.singles():
            if producer.is_closed:
                return  # a refusal closes a replicator
            refusal = publish_refusal(self.policies, one.entry, current_ms())
            if refusal is not None:
                producer.refuse(producer.take_numbers(1), one.sequence_id, refusal_of_one_entry(producer.peer), refusal)
            elif is_special:
                self._publish_marker_or_replica(producer, one)
            else:
                self._publish_run(producer, one)

    def _publish_run(self, producer: Producer, sent: Sent) -> None:
        self._path.publish_entries(self, producer, sent)
        self.producers.on_entries_accepted(sent)

    def _publish_marker_or_replica(self, producer: Producer, sent: Sent) -> None:
        """Publish a marker, or an entry of another cluster's replicator; publish rates do not apply to replicators."""
        entry = received(sent, producer.info.name, producer.info.replication)
        if entry is None:
            reason = (
                f"An entry of {producer.info.name!r} to {self.name} is not a known marker and has no valid position in "
                "the source: check the source cluster's replicator."
            )
            producer.refuse(producer.take_numbers(1), sent.sequence_id, ServerError.PersistenceError, reason)
            return
        self._path.publish_entries(self, producer, entry)
        if producer.info.replication is None:
            self.producers.on_entries_accepted(entry)

    def need_ledger(self) -> None:
        """Open a ledger in the background: the journal has none for the topic's waiting entries."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open_ledger())

    async def _open_ledger(self) -> None:
        """Open the ledger; if that is refused, disconnect the producers, which look the topic up again."""
        problem: PulsarpyError | None
        try:
            problem = (await self.incarnation.open_ledgers([self.part])).get(self.topic_id)
        except PulsarpyError as error:
            problem = error
        self._opening = None
        if problem is None:
            self._path.append_waiting(self)
        else:
            log.warning(
                "No ledger of %s can be opened, its producers are disconnected: %s",
                self.name,
                problem,
                extra={"topic": self.name},
            )
            self.producers.disconnect_all(problem if isinstance(problem, TopicTerminatedError) else None)
            self._path.drop_waiting(self)

    def forget_producer(self, producer: Producer) -> None:
        """Remove a producer that its client closed, or whose connection has ended."""
        self.producers.remove(producer.info)
        if producer.pending:
            self._path.drop_closed(self)

    def on_ledger_grew(self, ledger: LedgerId, end: int) -> None:
        """Make the acknowledged entries before `end` of an open ledger visible to consumers."""
        try:
            if self._credit.is_relative:
                self._credit.grant(self.subscriptions.all)
            if self._follower.grow_ledger(self.topic_id, ledger, end):
                self.subscriptions.on_entries_grew()
        except Exception:
            # The journal acknowledges entries of many topics at once: other topics must still get theirs.
            log.exception(
                "New entries of %s could not be announced to consumers.", self.name, extra={"topic": self.name}
            )

    async def wait_until_readable(self) -> None:
        """Wait until all entries acknowledged so far are readable, at most `follower.SETTLE_S`."""
        await self._follower.wait_until_readable(self.topic_id)

    async def _commit_epoch(self, epoch: int) -> None:
        """Make a topic epoch durable (errors as `MetadataStore.commit`)."""

        def decide(view: View) -> Change:
            record = catalog.require_topic(view, self.name)
            return Change(
                puts=[record.model_copy(update={"topic_epoch": epoch})], keys={keys.topic(self.name.full): None}
            )

        await asyncio.to_thread(self._store.commit, decide)

    # -- the chain -----------------------------------------------------------------------------------------------------

    def on_chain_grew(self, chain: LedgerChain) -> None:
        """Wake the subscriptions: more entries of the chain are readable."""
        self.subscriptions.on_entries_grew()
        self._notify_end()

    def on_chain_changed(self, chain: LedgerChain, ended: Sequence[LedgerId]) -> None:
        """Use a new chain: ledgers were added, closed or trimmed."""
        self.chain = chain
        self.subscriptions.on_chain_changed()
        self._notify_end()


def _unloaded(name: TopicName) -> ServerRefusalError:
    return ServerRefusalError(ServerError.ServiceNotReady, f"Topic {name} is being unloaded: look it up again.")


def _quorum(policies: Policies) -> Quorum | None:
    return None if policies.persistence is None else policies.persistence.quorum
