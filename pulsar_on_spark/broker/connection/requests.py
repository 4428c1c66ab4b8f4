"""The unanswered requests of one connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from pulsar_on_spark.broker.connection.refusal_log import RefusalLog
from pulsar_on_spark.broker.runtime.server_errors import BUG_REASON, code_of
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.protocol.commands import ServerError

log = logging.getLogger(__name__)

MAX_REQUESTS: Final = 5_000
"""Maximum number of unanswered requests of one connection; further ones get TooManyRequests."""
MAX_ERROR_CHARACTERS: Final = 4_096
"""Characters after which an error text is cut before it is sent to a client and logged, as it may quote client data."""

Refuse = Callable[[ServerError, str], None]
"""Sends a client the code and the text of the error that ends its request."""


class Requests:
    """The running requests of one connection, each in a task of its own."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusals = RefusalLog()

    def start(self, address: str, work: Callable[[], Awaitable[None]], refuse: Refuse) -> None:
        """Run a request in the background; send its error if it fails, or if `MAX_REQUESTS` are running.

        Args:
            address: The client's address, for the log.
            work: Carries out the request and answers it.
            refuse: Sends the request's error.
        """
        if len(self._tasks) >= MAX_REQUESTS:
            message = f"{MAX_REQUESTS} requests of this connection are not answered yet: try again later."
            refuse(ServerError.TooManyRequests, message)
        else:
            self.spawn(self._serve(address, work, refuse))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background, as one of the connection's tasks; it must not raise."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, address: str, work: Callable[[], Awaitable[None]], refuse: Refuse) -> None:
        try:
            await work()
        except PulsarpyError as error:
            message = str(error)[:MAX_ERROR_CHARACTERS]
            self._log_refusal(address, message)
            refuse(code_of(error), message)
        except Exception:
            # A bug in one request must not break others; clients retry this error.
            log.exception("A request of %s failed: a bug in the broker.", address, extra={"connection": address})
            refuse(ServerError.UnknownError, BUG_REASON)

    def _log_refusal(self, address: str, message: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if unlogged := self._refusals.take_unlogged(now_s):
            log.info("%d more requests of %s were refused.", unlogged, address, extra={"connection": address})
        if self._refusals.count_refusal(now_s):
            log.info("A request of %s is refused: %s", address, message, extra={"connection": address})
