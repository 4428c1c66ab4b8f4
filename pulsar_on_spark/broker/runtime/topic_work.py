"""Background work on topics that clients request, such as compactions: one at a time, in child processes.

Work that waits for its turn is reported as RUNNING, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from pulsar_on_spark.model.errors import TopicBusyError
from pulsar_on_spark.model.names import TopicName

log = logging.getLogger(__name__)

_MAX_KNOWN: Final = 10_000
"""Maximum number of topics whose last outcome is remembered."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkStatus:
    """The state of the work on a topic, in Pulsar's terms (`LongRunningProcessStatus`).

    Attributes:
        status: NOT_RUN if no work was done since this broker's start, RUNNING, or the last outcome.
        last_error: The reason of ERROR; "" for other states.
    """

    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"] = "NOT_RUN"
    last_error: str = ""

    @classmethod
    def of_all(cls, parts: Iterable[WorkStatus]) -> WorkStatus:
        """Return the status of a topic from those of its partitions: RUNNING or ERROR if any of them has it."""
        order = ("RUNNING", "ERROR", "NOT_RUN", "SUCCESS")
        return min(parts, key=lambda part: order.index(part.status), default=cls())


class TopicWork:
    """The work of one kind on all topics. Call all methods in the broker's event loop.

    Args:
        kind: The kind in one word, for errors, such as "compaction".
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._known: dict[TopicName, WorkStatus] = {}
        self._running: dict[TopicName, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(1)

    async def stop(self) -> None:
        """Cancel running and waiting work."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def status(self, topic: TopicName) -> WorkStatus:
        """Return the state of the work on a topic or partition; NOT_RUN if there was none."""
        return WorkStatus("RUNNING") if self.is_running(topic) else self._known.get(topic, WorkStatus())

    def is_running(self, topic: TopicName) -> bool:
        """Return True while work on the topic runs or waits for its turn."""
        return topic in self._running

    def begin(self, topic: TopicName, work: Callable[[], Awaitable[str | None]]) -> None:
        """Do some work on a topic or partition in the background.

        Args:
            topic: The topic or partition.
            work: The work; returns the reason of a failure, None after a success. It may raise OSError.

        Raises:
            TopicBusyError: work of this kind on the topic is running or waits for its turn.
        """
        if topic in self._running:
            raise TopicBusyError(
                f"A requested {self._kind} of topic {topic} is running already: wait until it has ended."
            )
        task = self._running[topic] = asyncio.create_task(self._run(topic, work), name=f"{self._kind} of {topic}")
        task.add_done_callback(lambda _: self._running.pop(topic, None))

    async def _run(self, topic: TopicName, work: Callable[[], Awaitable[str | None]]) -> None:
        outcome = WorkStatus("ERROR", f"The {self._kind} was stopped together with the broker: request it again.")
        try:
            async with self._turn:
                error = await work()
            outcome = WorkStatus("SUCCESS") if error is None else WorkStatus("ERROR", error)
        except OSError as error:
            outcome = WorkStatus("ERROR", f"The {self._kind} could not be started: {error}.")
        finally:
            remember(self._known, topic, outcome)
        if outcome.status == "ERROR":
            log.warning("The %s of topic %s failed: %s", self._kind, topic, outcome.last_error, extra={"topic": topic})


def remember(outcomes: dict[TopicName, _T], topic: TopicName, last: _T) -> None:
    """Store a topic's last outcome in `outcomes`, and remove the oldest outcome above the limit of topics."""
    outcomes.pop(topic, None)
    outcomes[topic] = last
    if len(outcomes) > _MAX_KNOWN:
        del outcomes[next(iter(outcomes))]
