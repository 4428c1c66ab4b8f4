"""What a broker looks after beside its clients: its sealing process, storage paths that failed, brokers that died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from pulsar_on_spark.broker.publishing import PublishPath
from pulsar_on_spark.broker.views import Views
from pulsar_on_spark.metadata.records import IncarnationRecord, PathRecord
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.topic.housekeeping.maintain import heal_paths
from pulsar_on_spark.topic.incarnation.dead_brokers import DeadBrokers
from pulsar_on_spark.topic.incarnation.incarnation import Incarnation
from pulsar_on_spark.topic.root import Root
from pulsar_on_spark.topic.sealing.process import SealingProcess

log = logging.getLogger(__name__)

WATCH_SEALING_EVERY_S: Final = 0.25
RESTART_SEALING_EVERY_S: Final = 5.0
"""How often a sealing process that ends by itself is looked for and started again."""
RECOVER_EVERY_S: Final = 0.5
"""How often it is looked whether another broker has died."""
HEAL_EVERY_S: Final = 5.0
"""How often storage paths that failed are tried; the journal writes to one again once it is well."""


class Surroundings:
    """Looks after these things, each in its own time, until it is stopped.

    Args:
        root: The root.
        views: Its metadata.
        incarnation: The broker's.
        sealing: Its sealing process.
        path: The publish path, which is held up where sealing is too far behind.
    """

    def __init__(
        self, root: Root, views: Views, incarnation: Incarnation, sealing: SealingProcess, path: PublishPath
    ) -> None:
        self._root = root
        self._views = views
        self._incarnation = incarnation
        self._sealing = sealing
        self._path = path
        self._dead = DeadBrokers(root)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        self._tasks = [
            asyncio.create_task(_every(interval_s, look))
            for interval_s, look in (
                (WATCH_SEALING_EVERY_S, self._watch_sealing),
                (RESTART_SEALING_EVERY_S, self._restart_sealing),
                (RECOVER_EVERY_S, self._recover),
                (HEAL_EVERY_S, self._heal),
            )
        ]

    async def stop(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch_sealing(self) -> None:
        self._path.set_lagging(self._sealing.is_over_lag_limit())
        self._incarnation.trimmed(self._sealing.deleted_before)

    async def _restart_sealing(self) -> None:
        if not self._sealing.is_alive():
            log.warning("The sealing process has ended and is started again.")
            await asyncio.to_thread(self._sealing.start)

    async def _recover(self) -> None:
        view = await self._views.view()
        others = {IncarnationId(each.incarnation) for each in view.all(IncarnationRecord)} - {self._incarnation.id}
        await asyncio.to_thread(self._dead.recover, view, others)

    async def _heal(self) -> None:
        view = await self._views.view()
        if any(path.state == "read-only" and path.reason for path in view.all(PathRecord)):
            for path_id in await asyncio.to_thread(heal_paths, self._root):
                log.warning("Storage path %d is well again and is written to.", path_id)


async def _every(interval_s: float, look: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(interval_s)
        try:
            await look()
        except (PulsarpyError, OSError) as error:
            log.warning("The broker cannot look after its surroundings now: %s", error)
