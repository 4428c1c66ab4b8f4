"""Automatic unloading of bundles: because isolation policies reserve them for other brokers, or because of the load."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from pulsar_on_spark.broker.cluster.handover import Handover
from pulsar_on_spark.broker.cluster.load import Shedder
from pulsar_on_spark.broker.cluster.load_reports import LoadReports
from pulsar_on_spark.broker.cluster.ownership import Ownership, bundle_counts
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.metadata.records import IsolationRecord
from pulsar_on_spark.topic.catalog.brokers import broker_of

log = logging.getLogger(__name__)

ISOLATE_EVERY_S: Final = 5.0
"""Interval at which this broker checks that isolation policies let it serve its bundles, in seconds."""
ROUND_S: Final = 60.0
"""Interval at which a broker may give up bundles because of its load, in seconds."""


class Balancer:
    """Periodic checks by which this broker unloads its own bundles, run until `stop`.

    Args:
        views: The views of the root's metadata.
        ownership: The owners of bundles.
        handover: Unloads bundles, or gives them to another broker.
        reports: The loads of all brokers.
        sheds: Returns True if bundles may be given up because of the load.
        clock: Returns the monotonic time, in seconds.

    Attributes:
        shed: Number of bundles that were given up because of the load.
    """

    def __init__(
        self,
        views: Views,
        ownership: Ownership,
        handover: Handover,
        reports: LoadReports,
        sheds: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shed = 0
        self._views = views
        self._ownership = ownership
        self._handover = handover
        self._reports = reports
        self._sheds = sheds
        self._clock = clock
        self._shedder = Shedder(ownership.incarnation)
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the two periodic checks."""
        forbidden = "This broker cannot give up now the bundles that isolation policies reserve for other brokers"
        busy = "This broker cannot give up bundles now to reduce its load"
        self._running = [
            asyncio.create_task(every(ISOLATE_EVERY_S, self._give_forbidden, forbidden), name="isolation"),
            asyncio.create_task(every(ROUND_S, self._shed, busy), name="load balancing"),
        ]

    async def stop(self) -> None:
        """Stop the two periodic checks."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _give_forbidden(self) -> None:
        """Give up the bundles that isolation policies reserve for other brokers, if such a broker is alive."""
        view = self._views.recent
        if not view.all(IsolationRecord):
            return
        own = self._ownership.incarnation
        owned = self._ownership.owned(view)
        for namespace in sorted({bundle.namespace for bundle in owned}):
            allowed = {record.incarnation for record in self._ownership.candidates(view, namespace)}
            if allowed and own not in allowed:
                log.info("An isolation policy reserves namespace %s for other brokers.", namespace)
                await self._handover.unload([bundle for bundle in owned if bundle.namespace == namespace])

    async def _shed(self) -> None:
        """Give up bundles if this broker is much busier than another one."""
        view = self._views.recent
        owned = {str(bundle): bundle for bundle in self._ownership.owned(view)}
        epochs = self._ownership.epochs(view, owned.values())

        def may_take(bundle: str, incarnation: str) -> bool:
            candidates = self._ownership.candidates(view, owned[bundle].namespace) if bundle in owned else []
            return any(record.incarnation == incarnation for record in candidates)

        move = self._shedder.decide(
            self._clock(),
            self._reports.known,
            {str(bundle): epoch for bundle, epoch in epochs.items()},
            bundle_counts(view),
            may_take,
        )
        if move is None or not self._sheds():
            return
        to = broker_of(view, move.to)
        log.info(
            "Bundles %s go to broker %s, which is less busy.",
            ", ".join(move.bundles),
            move.to if to is None else to.broker,
        )
        await self._handover.unload([owned[bundle] for bundle in move.bundles], move.to)
        self.shed += len(move.bundles)
