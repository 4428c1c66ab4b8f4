"""The IO of `chain`: the requests of its generators are answered from an object store."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import islice
from typing import TypeVar

from pulsar_on_spark.metadata.log.chain import Answer, Create, Fetch, Request
from pulsar_on_spark.metadata.log.entry import ENTRY, LOG, entry_key
from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.model.errors import ObjectsUnreachableError
from pulsar_on_spark.storage.objects.contract import Created, Fetched, Listed

_T = TypeVar("_T")


def run(
    steps: Generator[Request, Answer, _T], store: LogStore, fetch: Callable[[str], Fetched | None] | None = None
) -> _T:
    """Run a generator of `chain` to its end and return its result; errors are those of the generator and the store.

    Args:
        steps: The generator.
        store: The log.
        fetch: Reads one of the log's objects, as `ObjectStore.fetch`; None to read each when it is requested.
    """
    fetch = fetch or store.objects.fetch
    try:
        request = next(steps)
        while True:
            try:
                answer = _answer(request, store, fetch)
            except ObjectsUnreachableError as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        result: _T = end.value
        return result


def _answer(request: Request, store: LogStore, fetch: Callable[[str], Fetched | None]) -> Answer:
    key = entry_key(request.version)
    if isinstance(request, Create):
        created = store.objects.create(key, request.content)
        return None if isinstance(created, Created) else created.content
    if isinstance(request, Fetch):
        fetched = fetch(key)
        return None if fetched is None else fetched.content
    return _is_more_behind(request.version, store)


def _is_more_behind(version: int, store: LogStore) -> bool:
    """Return True if there are entries after a version, whose own entry the caller has read before.

    Raises:
        ObjectsUnreachableError: neither this entry nor a later one exists. A clean-up always keeps the newest entries,
            so the log cannot be empty: the disk is not mounted, or the folder was moved.
    """
    objects = store.objects
    if version < 0:
        return any(map(_is_entry, objects.list_after(LOG)))
    key = entry_key(version)
    listing = objects.list_after(LOG, f"{LOG}/{version:020d}.j")  # behind a checkpoint of this version
    entries = [listed.key for listed in islice(filter(_is_entry, listing), 2)]
    if not entries:
        raise ObjectsUnreachableError(
            f"{key} of {store.place} and all later entries are missing: mount its disk, make the store reachable, or "
            "restore them."
        )
    return entries[-1] > key


def _is_entry(listed: Listed) -> bool:
    return ENTRY.fullmatch(listed.key) is not None
