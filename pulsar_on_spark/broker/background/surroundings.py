"""Periodic checks of a broker's environment: sealing, unused journals, failed storage paths."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from pulsar_on_spark.broker.producing.publishing import PublishPath
from pulsar_on_spark.broker.runtime.journals import Journals
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.metadata.records import PathRecord
from pulsar_on_spark.storage.probe import Trials
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.maintain import heal_paths

log = logging.getLogger(__name__)

WATCH_SEALING_EVERY_S: Final = 0.25
RESTART_SEALING_EVERY_S: Final = 5.0
"""Interval at which sealing processes that have ended are restarted, in seconds."""
CLOSE_UNUSED_EVERY_S: Final = 30.0
"""Interval at which unused journals are closed, in seconds."""
HEAL_EVERY_S: Final = 5.0
"""Interval at which failed storage paths are probed, in seconds; the journal uses a path again once it is healthy."""


class Surroundings:
    """Periodic checks of a broker's environment, each run at its own interval until `stop`.

    Args:
        root: The open root.
        views: The views of the root's metadata.
        journals: The broker's journals.
        path: The publish path, which is closed while sealing is too far behind.
    """

    def __init__(self, root: RootHandle, views: Views, journals: Journals, path: PublishPath) -> None:
        self._root = root
        self._views = views
        self._journals = journals
        self._path = path
        self._ills: dict[int, str] = {}
        self._trials = Trials()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the checks."""
        self._tasks = [
            asyncio.create_task(every(interval_s, check, complaint))
            for interval_s, check, complaint in (
                (WATCH_SEALING_EVERY_S, self._watch_sealing, "The lag of sealing is unknown now"),
                (RESTART_SEALING_EVERY_S, self._journals.restart_sealing, "The sealer cannot be started now"),
                (CLOSE_UNUSED_EVERY_S, self._close_unused, "Journals that are not used cannot be closed now"),
                (HEAL_EVERY_S, self._heal, "Failed storage paths cannot be tried again now"),
            )
        ]

    async def stop(self) -> None:
        """Stop the checks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch_sealing(self) -> None:
        self._path.set_lagging(self._journals.look_at_sealing())

    async def _close_unused(self) -> None:
        await self._journals.close_unused(time.monotonic())

    async def _heal(self) -> None:
        view = await self._views.view()
        if any(path.state == "read-only" and path.reason for path in view.all(PathRecord)):
            for path_id in await asyncio.to_thread(heal_paths, self._root, self._ills, self._trials):
                log.warning("Storage path %d is healthy and writable again.", path_id, extra={"path": path_id})
