"""Facts outside the metadata that a decision on a subscription needs: live consumers, and messages that slots read.

All functions do IO and may take long: call them in threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing

import numpy as np

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import LedgerId, Position, TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.leases import LeaseWatcher
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.data_path.slot_filter import KEY_COLUMNS, key_slots
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.managed_ledger.chain.chain import plan_range
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.handover import KeyedEntry, keyed_holes, shared_holes
from pulsar_on_spark.topic.managed_ledger.cursor.holes import AckHoles

_MAX_WATCHERS = 1_024
"""Maximum number of subscriptions whose leases are watched; above it, the oldest watch is dropped."""


class Claims:
    """The leases of Spark consumers, as this broker observes them, and the messages that their slots have read."""

    def __init__(self, root: RootHandle) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._consumers: dict[str, LeaseWatcher] = {}

    def lease_states(self, view: View, part: TopicPart, name: str) -> Mapping[str, LeaseState]:
        """Return the lease states of the Spark consumers that read the topic under the subscription, by consumer name.

        A stale lease of a consumer that owns no slots counts as expired at once. If this consumer is alive and about to
        take slots, its commit fails, because the subscription's owner has changed.

        Raises:
            StorageError, FormatVersionError: a lease cannot be read.
        """
        record = view.get(SubscriptionRecord, f"{part.topic_id}/{name}")
        owners = {owner.consumer for owner in record.owners} if record is not None else set()
        with self._lock:
            watcher = self._watcher(name)
            watcher.observe_leases()
            states = watcher.lease_states(TopicId(part.topic_id))
            now_s = time.time()
            for consumer, state in states.items():
                if state is LeaseState.UNKNOWN and consumer not in owners and watcher.looks_stale(consumer, now_s):
                    states[consumer] = LeaseState.EXPIRED
        return states

    def holes_beyond(
        self, part: TopicPart, by_key: bool, positions: Mapping[int, Position], chain: LedgerChain
    ) -> AckHoles:
        """Return the messages that faster slots have read beyond the slowest slot's position, as acknowledged ranges.

        For Key_Shared, the messages are read to find the slots of their keys. Messages that can no longer be read stay
        unacknowledged: the next reader gets the error.

        Args:
            part: The topic.
            by_key: True for a Key_Shared subscription, False for a Shared one.
            positions: The next entry that each slot reads, by slot number.
            chain: The topic's current chain of ledgers.
        """
        if not by_key:
            return shared_holes(positions, chain)
        return keyed_holes(positions, self._keyed_entries(part, min(positions.values()), max(positions.values())))

    def _keyed_entries(self, part: TopicPart, start: Position, end: Position) -> Iterator[KeyedEntry]:
        with closing(Tail(self._root, fail_on_data_loss=False)) as tail:
            view = tail.read_view([part], reach={part.topic_id: end})
        plan = plan_range(view, part.name, part.topic_id, part.partition, start, end)
        reader = SliceReader(self._root.place, self._root.storage_paths(view), KEY_COLUMNS, fail_on_data_loss=False)
        for slice_ in plan.slices:
            for where, batch in reader.read(slice_):
                entries = batch.column("entry_id").to_numpy() + where.segment.entry_offset
                indexes = np.maximum(batch.column("batch_index").fill_null(0).to_numpy(), 0)
                slots = key_slots(batch)
                bounds = np.flatnonzero(np.diff(entries)) + 1
                for rows in np.split(np.arange(len(entries)), bounds):
                    if len(rows):
                        # Compaction may have removed messages of a batch: their indexes get the first message's slot.
                        of_message = np.full(int(indexes[rows].max()) + 1, slots[rows[0]])
                        of_message[indexes[rows]] = slots[rows]
                        ledger = LedgerId(where.segment.ledger_id)
                        yield KeyedEntry(ledger, int(entries[rows[0]]), tuple(of_message.tolist()))

    def _watcher(self, name: str) -> LeaseWatcher:
        watcher = self._consumers.get(name)
        if watcher is None:
            while len(self._consumers) >= _MAX_WATCHERS:
                self._consumers.pop(next(iter(self._consumers)))
            watcher = self._consumers[name] = LeaseWatcher(self._root.consumer_leases(name))
        return watcher
