"""The probe of an object store: it tries the rules that the engine relies on, and refuses a store that breaks one."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Final

from pulsar_on_spark.model.errors import ObjectsUnreachableError, UnsuitableStoreError
from pulsar_on_spark.storage.objects.contract import Exists, ObjectStore

PROBE_PREFIX: Final = "probe"


def probe(store: ObjectStore, name: str) -> None:
    """Try the store with a small object, which is deleted again.

    Args:
        store: The store.
        name: The store's URL, for errors.

    Raises:
        UnsuitableStoreError: the store breaks a rule, which the error names.
        ObjectsUnreachableError: the store gave no certain answer.
    """
    key = f"{PROBE_PREFIX}/{secrets.token_hex(16)}"
    try:
        _probe(store, name, key)
    finally:
        with suppress(ObjectsUnreachableError):
            store.delete(key)


def _probe(store: ObjectStore, name: str, key: str) -> None:
    def require(is_kept: bool, rule: str) -> None:
        if not is_kept:
            raise UnsuitableStoreError(
                f"{name} cannot hold a root: {rule}. Use a store with strong consistency and conditional writes, such "
                "as Amazon S3, Google Cloud Storage or Azure Blob Storage."
            )

    try:
        absent = store.fetch(key)
    except ObjectsUnreachableError as error:
        raise ObjectsUnreachableError(
            f"{error} A store may also answer this way if this process may read objects but not list them: grant both."
        ) from error
    require(absent is None, "an object that was never written can be read")
    created = store.create(key, b"1")
    require(not isinstance(created, Exists), "a new object cannot be created")
    again = store.create(key, b"2")
    require(isinstance(again, Exists) and again.content == b"1", "If-None-Match is ignored, so two writers overwrite")
    require(
        any(each.key == key for each in store.list_after(PROBE_PREFIX, key[:-1])),  # others may be probing, too
        "a listing misses an object that was just written",
    )
    replaced = store.replace(key, b"3", created.version)
    require(replaced is not None, "If-Match is refused with the present entity tag")
    lost = store.replace(key, b"4", created.version)
    require(lost is None, "If-Match is ignored, so two writers overwrite")
    require(store.fetch_range(key, 0, 1) == b"3", "an overwritten object keeps its old content")
    store.delete(key)
    require(store.fetch(key) is None, "a deleted object can still be read")
