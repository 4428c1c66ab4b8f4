"""A broker incarnation that runs in a thread of this process, for tests that write as a broker does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import TypeVar

from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.model.ids import MessageId, TopicId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import Appended, settle_entries
from tests.kit.pulsar_entries import ClientMessage, batch_entry, single_entry

_T = TypeVar("_T")
_PUBLISH_TIME_MS = 1_753_500_000_000


class RunningIncarnation:
    """An incarnation with its event loop; the methods are called by any one thread and wait for their outcome.

    Attributes:
        acknowledged_ids: Ids of acknowledged entries, in order.
        unknown_count: How many outcomes are unknown.
        over: Why the incarnation has ended by itself.
    """

    def __init__(self, root: Root, *, limits: JournalLimits | None = None, lease_duration_s: float = 10.0) -> None:
        self.acknowledged_ids: list[MessageId] = []
        self.unknown_count = 0
        self.over: str | None = None
        self._root = root
        self._waiting: list[asyncio.Future[None]] = []
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run_loop, name="incarnation", daemon=True)
        self._thread.start()
        self.incarnation = self._run(
            Incarnation.start(root, self, on_ended=self._ended, limits=limits, lease_duration_s=lease_duration_s)
        )

    def __enter__(self) -> RunningIncarnation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self.kill()

    def part(self, topic: str) -> TopicPart:
        """The topic, which has no partitions."""
        view = self._root.store.view()
        (part,) = catalog.parts(view, catalog.require_topic(view, TopicName.parse(topic)))
        return part

    def send(self, topic: str, values: Sequence[bytes | None], *, batch: int = 1) -> None:
        """Publish messages, `batch` of them in an entry, and wait until all are acknowledged."""
        groups = [values[first : first + batch] for first in range(0, len(values), batch)]
        made = [[ClientMessage(value) for value in group] for group in groups]
        entries = [batch_entry(group) if batch > 1 else single_entry(group[0]) for group in made]
        self.send_entries(topic, entries, [len(group) for group in groups])

    def send_entries(self, topic: str, entries: Sequence[bytes], counts: Sequence[int] | None = None) -> None:
        """Append entries as they are, and wait until all are acknowledged."""
        self._run(self._append(self.part(topic), entries, counts or [1] * len(entries)))

    def close_ledger(self, topic: str) -> None:
        """Close the topic's ledger."""
        self._run(self.incarnation.close_ledgers([TopicId(self.part(topic).topic_id)]))

    def stop(self) -> None:
        """End cleanly."""
        self._run(self.incarnation.stop())
        self._end_thread()

    def kill(self) -> None:
        """End as SIGKILL does, as far as files and metadata can tell: nothing is closed, the lease runs out."""
        self.incarnation._lease._stopping.set()  # first: an orderly end releases the lease
        self._loop.call_soon_threadsafe(self.incarnation.journal.abandon_log)
        self._end_thread()

    async def _append(self, part: TopicPart, entries: Sequence[bytes], counts: Sequence[int]) -> None:
        topic_id = TopicId(part.topic_id)
        refused = await self.incarnation.open_ledgers([part])
        for error in refused.values():
            raise error
        for entry, count in zip(entries, counts, strict=True):
            while not self.incarnation.can_append:
                await asyncio.sleep(0.001)
            self.incarnation.append(topic_id, count, _PUBLISH_TIME_MS, [entry])
        wanted = len(self.acknowledged_ids) + self.incarnation.ledgers[topic_id].outstanding
        while len(self.acknowledged_ids) < wanted:
            waiting = self._loop.create_future()
            self._waiting.append(waiting)
            await waiting

    def _run(self, work: Coroutine[object, object, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def _run_loop(self) -> None:
        with self._runner:  # which at the end cancels all tasks and waits for what they do in threads
            self._loop.run_forever()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # -- the sink of entries -------------------------------------------------------------------------------------------

    def on_entries_acknowledged(self, entries: Sequence[Appended[object]]) -> None:
        """See `EntrySink`."""
        settle_entries(entries)
        self.acknowledged_ids += (MessageId(entry.ledger.ledger_id, entry.first) for entry in entries)
        self._wake()

    def on_entries_unknown(self, entries: Sequence[Appended[object]]) -> None:
        """See `EntrySink`."""
        settle_entries(entries)
        self.unknown_count += len(entries)

    def on_journal_room(self) -> None:
        """See `EntrySink`."""

    def _ended(self, reason: str) -> None:
        self.over = reason
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(RuntimeError(f"the incarnation has ended: {reason}"))
