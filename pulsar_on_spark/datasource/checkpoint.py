"""A streaming query's checkpoint, as far as the sink has to do with it: on the local disk, it is made durable.

Spark's log of offsets isn't synced. After a power cut `offsets/N` may be gone while the sink's commit of batch N is
there: Spark would plan another batch N, and its rows be taken for those of the first. So the sink syncs `offsets/N`
before it commits N. Other file systems than the local one keep what was closed.
"""

from __future__ import annotations

import json
from pathlib import Path

from pulsar_on_spark.ledger.files import OS_FILES, FileOps
from pulsar_on_spark.model.errors import InvalidArgumentError, StorageError
from pulsar_on_spark.topic.root import local_path


def checkpoint_of(query_id: str, location: str | None, default: str | None) -> Path | None:
    """The folder of a query's checkpoint; None where it is on no local disk.

    Args:
        query_id: The query.
        location: Option `checkpointLocation`, which is the folder itself.
        default: Spark's setting `spark.sql.streaming.checkpointLocation`, which is the folder of all checkpoints.
    """
    if location is not None:
        return _local(location)
    folder = None if default is None else _local(default)
    if folder is None:
        return None
    return next((each.parent for each in folder.glob("*/metadata") if _query_id(each) == query_id), None)


def sync_offsets(checkpoint: Path, batch_id: int, files: FileOps = OS_FILES) -> None:
    """Return when the offsets of a batch, and the query's id, are durable in its checkpoint.

    Raises:
        StorageError: they cannot be made so.
    """
    offsets = checkpoint / "offsets"
    # Spark's local file system keeps checksums beside its files, and believes no file with another's.
    content = [offsets / str(batch_id), offsets / f".{batch_id}.crc", checkpoint / "metadata"]
    try:
        for path in content:
            if path.exists():
                _sync(files, path)
        for directory in (offsets, checkpoint, checkpoint.parent):
            files.fsync_directory(directory)
    except OSError as error:
        raise StorageError(
            f"The offsets of batch {batch_id} in checkpoint {checkpoint} cannot be made durable ({error}): check its "
            "disk, and start the query again."
        ) from error


def _sync(files: FileOps, path: Path) -> None:
    fd = files.open(path)
    try:
        files.fdatasync(fd)
    finally:
        files.close(fd)


def _local(location: str) -> Path | None:
    try:
        folder = local_path(location)
    except InvalidArgumentError:
        return None
    return folder if folder.is_dir() else None


def _query_id(metadata: Path) -> str | None:
    try:
        return str(json.loads(metadata.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
