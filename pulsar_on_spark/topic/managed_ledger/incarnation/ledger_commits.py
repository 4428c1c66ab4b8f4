"""Group commits of an incarnation's ledgers: requests that arrive during a commit join the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from pulsar_on_spark.metadata.records import LedgerRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.ids import IncarnationId, LedgerId, TopicId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.ledgers import (
    ClosedLedger,
    IdBlock,
    LedgerCommit,
    Termination,
    decide,
)


@dataclass(slots=True)
class _Asked:
    """The requests for the next commit. `done` gets its outcome; None while there are no requests."""

    opens: dict[TopicId, TopicPart] = field(default_factory=dict)
    closes: list[ClosedLedger] = field(default_factory=list)
    terminations: list[Termination] = field(default_factory=list)
    done: asyncio.Future[LedgerCommit] | None = None


class LedgerCommits:
    """Group commits of an incarnation's ledgers. Call all methods in one event loop; one thread at a time commits.

    A commit that is reported as failed may have been made, or may still be made. So its ledger ids are not used again.
    The next commit closes the ledgers of the failed commit, which are empty because no writer knows them. If they do
    not exist, the next commit advances a key of the failed commit, so that the failed commit can no longer be made.
    """

    def __init__(self, store: MetadataStore, incarnation: IncarnationId) -> None:
        self._store = store
        self._incarnation = incarnation
        self._ids = IdBlock()
        self._strays: dict[LedgerId, ClosedLedger] = {}
        self._asked = _Asked()
        self._running: asyncio.Task[None] | None = None
        self._opening: dict[str, asyncio.Future[None]] = {}
        """By topic id, a future that is done when the commit that opens a ledger for the topic has ended."""

    @property
    def has_strays(self) -> bool:
        """True if a failed commit may have opened ledgers, which the next commit must close."""
        return bool(self._strays)

    async def no_others(self, parts: Sequence[TopicPart]) -> None:
        """Wait until no commit is in progress that opens a ledger for any of the topics."""
        while opening := [self._opening[part.topic_id] for part in parts if part.topic_id in self._opening]:
            await asyncio.wait(opening)

    async def open(self, parts: Sequence[TopicPart]) -> LedgerCommit:
        """Open a new ledger for each topic; errors are those of `commit`. Call `no_others` for the topics first."""
        done = asyncio.get_running_loop().create_future()
        opening = dict.fromkeys((part.topic_id for part in parts), done)
        self._opening |= opening
        try:
            return await self.commit(parts)
        finally:
            for topic_id in opening:
                del self._opening[topic_id]
            done.set_result(None)

    async def commit(
        self,
        opens: Sequence[TopicPart] = (),
        closes: Sequence[ClosedLedger] = (),
        terminations: Sequence[Termination] = (),
    ) -> LedgerCommit:
        """Add requests to the next commit; return the outcome of all its requests, also those of other callers.

        Raises:
            JournalFencedError: the incarnation's record is not OPEN.
            MetadataError: the commit failed, or its outcome is unknown.
        """
        requests = self._asked
        requests.opens |= {TopicId(part.topic_id): part for part in opens}
        requests.closes += closes
        requests.terminations += terminations
        if requests.done is None:
            requests.done = asyncio.get_running_loop().create_future()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await asyncio.shield(requests.done)

    async def _run(self) -> None:
        try:
            while (requests := self._asked).done is not None:
                self._asked = _Asked()
                try:
                    committed = await asyncio.to_thread(self._commit, requests)
                except Exception as error:  # every request in the commit gets the error
                    requests.done.set_exception(error)
                    requests.done.exception()
                else:
                    requests.done.set_result(committed)
        finally:
            self._running = None

    def _commit(self, asked: _Asked) -> LedgerCommit:
        opens = list(asked.opens.values())
        tried: list[LedgerCommit] = []

        def decide_anew(view: View) -> Change | None:
            closes = [*asked.closes, *self._strays.values()]
            fence = not all(_is_there(view, each) for each in self._strays.values())
            tried.append(decide(view, self._incarnation, opens, closes, self._ids, asked.terminations, fence=fence))
            return tried[-1].change

        try:
            self._store.commit(decide_anew)
        except Exception:
            self._ids = IdBlock()
            self._strays |= {
                ledger_id: ClosedLedger(asked.opens[topic_id], ledger_id, 0)
                for each in tried
                for topic_id, ledger_id in each.opened.items()
            }
            raise
        self._ids = tried[-1].ids
        self._strays = {}
        return tried[-1]


def _is_there(view: View, ledger: ClosedLedger) -> bool:
    return view.get(LedgerRecord, f"{ledger.part.topic_id}/{ledger.ledger_id:020d}") is not None
