"""Offsets in a streaming query's checkpoint on a local disk: the sink syncs them and stores their digest.

Spark does not sync its log of offsets. After a power cut, `offsets/N` may be missing although the sink has committed
batch N. Spark would then plan another batch N, and its rows would be skipped as already written. So the sink syncs
`offsets/N` before it commits batch N. File systems other than the local one make a file durable when it is closed.

A checkpoint that was restored from a backup may lack the last `offsets/N`, too. So the sink stores a digest of
`offsets/N` with its commit of N. A replay reads the same file and has the same digest; a new plan has another one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pulsar_on_spark.model.errors import InvalidArgumentError, StorageError
from pulsar_on_spark.model.root_path import local_path
from pulsar_on_spark.storage.files import OS_FILES, FileOps

log = logging.getLogger(__name__)

_NOT_OURS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors that mean that this host does not have the checkpoint's path, or that this process may not read it."""


def checkpoints_of(query_id: str, location: str | None, default: str | None) -> list[Path]:
    """Return the folders with a query's checkpoint: the checkpoint, and copies of it in the folder of all checkpoints.

    The list is empty if the checkpoint is not on a local disk, or not readable by this process. A path without a scheme
    may belong to another file system, so a folder counts only if its file `metadata` has the query's id.

    Args:
        query_id: The query.
        location: Option `checkpointLocation`, the checkpoint's folder; None to search `default`.
        default: Spark's setting `spark.sql.streaming.checkpointLocation`, the folder of all checkpoints.

    Raises:
        StorageError: the disk with the folder fails.
    """
    folder = _local(location or default)
    if folder is None:
        return []
    try:
        candidates = [folder / "metadata"] if location else folder.glob("*/metadata")
        folders = [metadata.parent for metadata in candidates if _query_id(metadata) == query_id]
    except OSError as error:
        raise StorageError(
            f"The checkpoint of query {query_id} in {folder} cannot be read ({error}): check its disk, and start the "
            "query again."
        ) from error
    if not folders and os.path.isdir(folder):
        log.warning("No checkpoint of query %s is readable in %s: its offsets are not made durable.", query_id, folder)
    return folders


def sync_offsets(checkpoints: Sequence[Path], batch_id: int, files: FileOps = OS_FILES) -> str | None:
    """Make the offsets of a batch, and the query's id, durable in its checkpoint.

    Args:
        checkpoints: The checkpoint and its copies, of which those that have the batch must have the same offsets.
        batch_id: The batch.
        files: The file system.

    Returns:
        A digest of the offsets of the batch's sources, including the names of files to which offsets of Spark's file
        source refer. None without a checkpoint and, with a warning in the log, if this process cannot open the offsets.

    Raises:
        StorageError: the offsets cannot be made durable, or a copy of the checkpoint has other offsets.
    """
    holding = [checkpoint for checkpoint in checkpoints if os.path.exists(checkpoint / "offsets" / str(batch_id))]
    digests = {checkpoint: _synced(checkpoint, batch_id, files) for checkpoint in holding or checkpoints[:1]}
    if len(set(digests.values())) > 1:
        raise StorageError(
            f"The folders {', '.join(map(str, digests))} are checkpoints of one query with different offsets of batch "
            f"{batch_id}: move the copies out of {checkpoints[0].parent}, or set option checkpointLocation to the "
            "query's own checkpoint, and start the query again."
        )
    return next(iter(digests.values()), None)


def _synced(checkpoint: Path, batch_id: int, files: FileOps) -> str | None:
    """Sync a batch's offsets in one checkpoint, and return their digest; None if this process cannot open them."""
    offsets = checkpoint / "offsets"
    digest = None
    try:
        sources = _sources(offsets / str(batch_id))
        file_logs = _file_logs(checkpoint, sources)
        digest = _digest(sources, file_logs)
        for path in (offsets / str(batch_id), *file_logs, checkpoint / "metadata"):
            _sync(files, path)
            # Spark's local file system keeps checksums beside its files, and rejects a file with a wrong one.
            checksum = path.with_name(f".{path.name}.crc")
            if checksum.exists():
                _sync(files, checksum)
        for directory in (*(path.parent for path in file_logs), offsets, checkpoint, checkpoint.parent):
            files.fsync_directory(directory)
    except _NOT_OURS as error:
        log.warning("The offsets of batch %d cannot be made durable in checkpoint %s: %s", batch_id, checkpoint, error)
    except OSError as error:
        raise StorageError(
            f"The offsets of batch {batch_id} in checkpoint {checkpoint} cannot be made durable ({error}): check its "
            "disk, and start the query again."
        ) from error
    return digest


def _sources(planned: Path) -> list[bytes]:
    """Return the lines with the sources' offsets in a file of Spark's log of offsets (Spark's class `OffsetSeqLog`).

    The first two lines, which have the format's version, settings and times, are left out, because users may edit them.
    A line break at the end, which an editor may add, makes no difference.
    """
    return planned.read_bytes().splitlines()[2:]


_FILES = re.compile(rb'(?:([^{]+):)?\{"logOffset":(\d+)\}')
"""Pattern of an offset of Spark's file source: a number in the source's own log, which names the files.

In version 2 of the log of offsets, the source's name precedes the offset.
"""


def _file_logs(checkpoint: Path, sources: Sequence[bytes]) -> dict[Path, int]:
    """Return the log files of Spark's file sources, each with the number to which the source's offset refers."""
    numbers: dict[Path, int] = {}
    for number, line in enumerate(sources):
        if match := _FILES.fullmatch(line):
            folder = checkpoint / "sources" / (match[1].decode() if match[1] else str(number))
            last = int(match[2])
            numbers |= {path: last for path in (folder / str(last), folder / f"{last}.compact") if path.exists()}
    return numbers


def _digest(sources: Sequence[bytes], file_logs: Mapping[Path, int]) -> str | None:
    """Return a digest of the offsets and the names of their files; None without offsets."""
    if not sources:
        return None
    digest = hashlib.sha256(b"\n".join(sources))
    for path, number in file_logs.items():
        with path.open("rb") as lines:
            # A compacted log also names the files of all earlier numbers.
            for line in lines:
                if line.rstrip().endswith(b'"batchId":%d}' % number):
                    digest.update(b"\n" + line.rstrip())
    return digest.hexdigest()[:16]


def _sync(files: FileOps, path: Path) -> None:
    fd = files.open(path)
    try:
        files.fdatasync(fd)
    finally:
        files.close(fd)


def _local(location: str | None) -> Path | None:
    """Return a location as a local path; None without a location, or if it is not local."""
    try:
        return None if location is None else local_path(location)
    except InvalidArgumentError:
        return None


def _query_id(metadata: Path) -> str | None:
    """Return the query's id in a checkpoint's file `metadata`; None if the file cannot be read or has no id."""
    try:
        return str(json.loads(metadata.read_text(encoding="utf-8"))["id"])
    except (*_NOT_OURS, ValueError, KeyError, TypeError):
        return None
