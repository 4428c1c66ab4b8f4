"""Creation of a table: the check of its location, and its first log entry."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from pulsar_on_spark.metadata.log.entry import LOG, Content, encode_entry, entry_key, new_token, new_writer
from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.metadata.log.opening import damaged
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.storage.objects.contract import ObjectStore

_UNUSABLE: Final = re.compile(r"[\x00-\x1f\x7f\\\[\]^|]|%[0-9a-fA-F]{2}")
"""Characters in paths with which deltalake 1.6.6 panics or uses another path."""
METADATA_TABLE: Final = {
    "delta.checkpointInterval": "1000000",  # checkpoints are made by `TableLog.checkpoint`
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.dataSkippingStatsColumns": "seq",
}
"""The configuration of the metadata tables."""


def check_location(place: str) -> None:
    """Check that deltalake, with which users may read the tables, can handle a path.

    Raises:
        InvalidArgumentError: the path has unusable characters; the error names the first of them.
    """
    unusable = _UNUSABLE.search(place)
    if unusable is not None:
        raise InvalidArgumentError(
            f"The root's path {place!r} contains {unusable.group()!r}, which the Delta library cannot handle: "
            "choose a path without control characters, backslashes, brackets, ^, | or percent escapes."
        )


def create_table(store: LogStore, schema: pa.Schema, configuration: Mapping[str, str] = METADATA_TABLE) -> None:
    """Create an empty table, unless it exists. Several processes may do this at the same time.

    Args:
        store: The log store of the table.
        schema: The table's columns.
        configuration: The table's properties.

    Raises:
        CorruptMetadataError: the table has other objects, but no log.
        MetadataError: the disk is full or read-only, or this process may not write to it.
        StorageError: the folder or object store cannot be written now, or an fsync of the folder has failed.
    """
    store.require_writable()
    if not has_log(store.objects):
        # The log is written first. So if there are other objects, the log must exist by now, or it was lost.
        if any(_is_trace(listed.key) for listed in store.objects.list_after("")):
            if not has_log(store.objects):
                raise damaged(store, entry_key(0), "is missing")
        else:
            head = (
                {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
                {"metaData": _metadata(schema, configuration)},
            )
            token = new_token(new_writer())
            store.objects.create(entry_key(0), encode_entry(Content(head=head), token, "", store.boot))
    store.sync()


def _is_trace(key: str) -> bool:
    """Return True for the key of a data file or a checksum."""
    return key.endswith(".parquet") or key.startswith("_checksums/")


def has_log(objects: ObjectStore) -> bool:
    """Return True if a table has a log. After an interrupted creation, a folder may exist without a log."""
    return next(iter(objects.list_after(LOG)), None) is not None


def schema_json(schema: pa.Schema) -> str:
    """Return Delta's JSON for a schema. It is made by delta-rs, which is imported only here and in `arrow_schema`."""
    from deltalake import Schema

    return str(Schema.from_arrow(schema).to_json())


def arrow_schema(text: str) -> pa.Schema:
    """Return the schema for Delta's JSON (the reverse of `schema_json`)."""
    from deltalake import Schema

    return pa.schema(Schema.from_json(text).to_arrow())


def _metadata(schema: pa.Schema, configuration: Mapping[str, str]) -> dict[str, object]:
    return {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_json(schema),
        "partitionColumns": [],
        "createdTime": int(time.time() * 1000),
        "configuration": dict(configuration),
    }
