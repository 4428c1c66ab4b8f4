"""Objects of a log that are read in a known order, and requested several at once: a request to a store takes long."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial

from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.storage.daemon_calls import start_call
from pulsar_on_spark.storage.objects.contract import Fetched


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
        if key not in self._begun and (not self._next or self._next[0] != key):
            return self._objects.fetch(key)
        while self._next and len(self._begun) < self._at_once:
            ahead = self._next.popleft()
            self._begun[ahead] = start_call(partial(self._objects.fetch, ahead), "metadata-ahead")
        return self._begun.pop(key).result()
