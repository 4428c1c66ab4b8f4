"""Acquisition of subscriptions for the broker: find the current owner, wait for its lease, or take over from it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from pulsar_on_spark.broker.cursors import decisions
from pulsar_on_spark.broker.cursors.claims import Claims
from pulsar_on_spark.broker.cursors.decisions import (
    Facts,
    LacksBrokerError,
    LacksHolesError,
    LacksLeaseError,
    Request,
)
from pulsar_on_spark.broker.runtime.commits import GroupedCommits
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import ConsumerBusyError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.record import CursorRecord
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_cursors import DeadOwners

MAX_WAIT_S: Final = 30.0
"""Maximum time in seconds that `claim` waits to see leases renewed or expired; a lease lasts 10 s by default."""
_WATCH_STEP_S: Final = 0.1


class Claimer:
    """Acquisition of subscriptions by one broker. Call all methods in the broker's event loop."""

    def __init__(self, root: RootHandle, commits: GroupedCommits) -> None:
        self._commits = commits
        self._claims = Claims(root)
        self._dead_owners = DeadOwners(root)
        self._saved: set[str] = set()
        self._saving: dict[IncarnationId, asyncio.Task[LeaseState]] = {}

    async def claim(self, request: Request, chain: LedgerChain) -> CursorRecord:
        """Commit this broker's ownership of a subscription, after collecting the facts that the decision needs.

        Args:
            request: The subscription to acquire.
            chain: The topic's current chain of ledgers.

        Returns:
            The cursor record with which the new epoch begins: the whole cursor, not a change.

        Raises:
            ConsumerBusyError: a Spark query or another broker's clients own the subscription, or the state of its owner
                is still unknown after `MAX_WAIT_S`.
            TopicNotFoundError: the topic was deleted.
            JournalFencedError: this broker's incarnation has ended.
            ServerRefusalError: the topic has reached its limit of subscriptions.
            JournalUndecidedError, CorruptCursorError: the journal of the subscription's last broker cannot be read now.
            MetadataError, StorageError: the root cannot be read or written.
        """
        part, name = request.part, request.name
        facts = Facts(saved=self._saved)

        def decide(view: View, cursors: Cursors) -> tuple[Change, CursorRecord]:
            states = self._claims.lease_states(view, part, name)
            return decisions.decide_open(view, cursors, request, replace(facts, states=states))

        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + MAX_WAIT_S
        while loop.time() < deadline_s:
            try:
                return await self._commits.commit(decide)
            except LacksLeaseError:
                await asyncio.sleep(_WATCH_STEP_S)
            except LacksBrokerError as lacks:
                await self._save_dead_cursors(lacks.incarnation, request)
            except LacksHolesError as lacks:
                by_key = lacks.type == "Key_Shared"
                facts.beyond = await asyncio.to_thread(self._claims.holes_beyond, part, by_key, lacks.positions, chain)
                facts.positions = lacks.positions
        raise ConsumerBusyError(
            f"The broker could not find out within {MAX_WAIT_S:.0f} s whether the owner of subscription {name!r} on "
            f"{part.name} is alive: subscribe again."
        )

    async def _save_dead_cursors(self, incarnation: IncarnationId, request: Request) -> None:
        """Save a dead broker's cursors in the table; concurrent callers for the same broker share the work."""
        task = self._saving.get(incarnation)
        if task is None:
            task = asyncio.create_task(asyncio.to_thread(self._dead_owners.save_dead_cursors, incarnation))
            self._saving[incarnation] = task
            task.add_done_callback(lambda _: self._saving.pop(incarnation))
        match await asyncio.shield(task):
            case LeaseState.EXPIRED:
                self._saved.add(incarnation)
            case LeaseState.ALIVE:
                raise ConsumerBusyError(
                    f"Subscription {request.name!r} on {request.part.name} is held by clients of another broker, "
                    f"incarnation {incarnation}: connect to that broker, or stop it."
                )
            case LeaseState.UNKNOWN:
                await asyncio.sleep(_WATCH_STEP_S)
