"""What delta-rs does for a table: it translates the schema and writes checkpoints. Other modules do without it.

It is imported by the functions: a process that only opens a root needs neither, and starts faster.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from pulsar_on_spark.metadata.log.chain import OvertakenError


def schema_json(schema: pa.Schema) -> str:
    """Translate a schema into Delta's JSON."""
    from deltalake import Schema

    return str(Schema.from_arrow(schema).to_json())


def write_checkpoint(place: str, version: int, options: Mapping[str, str]) -> None:
    """Write a checkpoint of a version, and the pointer to it; neither is synced.

    Args:
        place: The table's path or URL.
        version: A version whose entries are all there.
        options: The options of an object store.

    Raises:
        OvertakenError: it was not finished, for example because the log was cleaned up meanwhile.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(place, storage_options=dict(options))
        table.load_as_version(version)
        table.create_checkpoint()
    except (DeltaError, OSError) as error:
        raise OvertakenError(f"a checkpoint was not finished ({error})") from error
