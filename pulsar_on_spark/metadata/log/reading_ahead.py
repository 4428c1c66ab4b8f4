"""Objects of a log that are read in a known order, and requested several at once: a request to a store takes long."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial

from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.storage.daemon_calls import start_call
from pulsar_on_spark.storage.objects.contract import Fetched

MAX_REQUESTS = 32
"""Maximum number of requests ahead that a process has in flight. They may outlive a read that an error has ended."""
_free_requests = threading.BoundedSemaphore(MAX_REQUESTS)


class ReadingAhead:
    """Reader of a log's objects that begins to read those that come next, `LogStore.requests_at_once` in all.

    Nothing depends on the order of the requests: an object is never changed, and if it was deleted, or created again by
    a late request, the chain of tokens shows it.

    Args:
        store: The log.
        keys: The keys of the objects that will be read, in this order; some may be absent.
    """

    def __init__(self, store: LogStore, keys: Iterable[str]) -> None:
        self._objects = store.objects
        self._at_once = store.requests_at_once
        self._next = deque(keys if self._at_once > 1 else ())
        self._begun: dict[str, Future[Fetched | None]] = {}

    def fetch(self, key: str) -> Fetched | None:
        """Read an object, as `ObjectStore.fetch`; an object that is not among the keys is read alone."""
        if key in self._begun or (self._next and self._next[0] == key):
            self._begin_more()
        if key in self._begun:
            return self._begun.pop(key).result()
        if self._next and self._next[0] == key:  # no request ahead was possible
            self._next.popleft()
        return self._objects.fetch(key)

    def _begin_more(self) -> None:
        while self._next and len(self._begun) < self._at_once and _free_requests.acquire(blocking=False):
            try:
                self._begun[self._next[0]] = start_call(partial(self._fetch_ahead, self._next[0]), "metadata-ahead")
            except RuntimeError:  # the system starts no more threads
                _free_requests.release()
                return
            self._next.popleft()

    def _fetch_ahead(self, key: str) -> Fetched | None:
        try:
            return self._objects.fetch(key)
        finally:
            _free_requests.release()
