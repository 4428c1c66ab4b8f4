"""Acquisition of subscriptions for a broker's clients: find the present owner, wait for it, or settle a dead one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from pulsar_on_spark.broker.cursors import decisions
from pulsar_on_spark.broker.cursors.claims import Claims
from pulsar_on_spark.broker.cursors.decisions import (
    Known,
    LacksBrokerError,
    LacksHolesError,
    LacksStandingError,
    Request,
)
from pulsar_on_spark.broker.runtime.commits import GroupedCommits
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import ConsumerBusyError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.model.standing import Standing
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.record import CursorRecord
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_cursors import DeadOwners

MAX_WAIT_S: Final = 30.0
"""Time limit of an `open` for leases to prove alive or run out; they last 10 s by default."""
_WATCH_STEP_S: Final = 0.1


class Claimer:
    """All methods belong to one event loop."""

    def __init__(self, root: RootHandle, commits: GroupedCommits) -> None:
        self._commits = commits
        self._claims = Claims(root)
        self._dead_owners = DeadOwners(root)
        self._settled: set[str] = set()
        self._settling: dict[IncarnationId, asyncio.Task[Standing]] = {}

    async def claim(self, request: Request, chain: LedgerChain) -> CursorRecord:
        """Commit that the subscription is this broker's; finds out what the decision lacks, again and again.

        Raises:
            ConsumerBusyError: a query of Spark, or another broker's clients, have it, or its owner cannot be
                determined.
            TopicNotFoundError: the topic was deleted.
            JournalUndecidedError, CorruptCursorError: the journal of its last broker cannot be read now.
            MetadataError, StorageError: the root cannot be read or written.
        """
        part, name = request.part, request.name
        known = Known(settled=self._settled)

        def decide(view: View, cursors: Cursors) -> tuple[Change, CursorRecord]:
            standings = self._claims.standings(view, part, name)
            return decisions.decide_open(view, cursors, request, replace(known, standings=standings))

        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + MAX_WAIT_S
        while loop.time() < deadline_s:
            try:
                return await self._commits.commit(decide)
            except LacksStandingError:
                await asyncio.sleep(_WATCH_STEP_S)
            except LacksBrokerError as lacks:
                await self._settle(lacks.incarnation, request)
            except LacksHolesError as lacks:
                by_key = lacks.type == "Key_Shared"
                known.beyond = await asyncio.to_thread(self._claims.beyond, part, by_key, lacks.positions, chain)
                known.positions = lacks.positions
        raise ConsumerBusyError(
            f"Subscription {name!r} on {part.name} is in use, or it cannot be told in {MAX_WAIT_S:.0f} s: try again."
        )

    async def _settle(self, incarnation: IncarnationId, request: Request) -> None:
        """Move a dead broker's cursors to the table; all openings that wait for the same broker wait together."""
        task = self._settling.get(incarnation)
        if task is None:
            task = asyncio.create_task(asyncio.to_thread(self._dead_owners.settle, incarnation))
            self._settling[incarnation] = task
            task.add_done_callback(lambda _: self._settling.pop(incarnation))
        match await asyncio.shield(task):
            case Standing.RUN_OUT:
                self._settled.add(incarnation)
            case Standing.ALIVE:
                raise ConsumerBusyError(
                    f"Subscription {request.name!r} on {request.part.name} is held by the clients of another broker, "
                    f"incarnation {incarnation}: connect to that one, or stop it."
                )
            case Standing.UNKNOWN:
                await asyncio.sleep(_WATCH_STEP_S)
