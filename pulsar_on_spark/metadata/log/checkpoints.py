"""Checkpoints of a log: Delta's own, written by delta-rs, and their checksums beside the log.

    <table>/_checksums/<version>.checkpoint   length and CRC32C of a checkpoint

The checksum is put when the checkpoint is durable and was compared with the state of its writer. A checkpoint without
one is ignored, and so is one that contradicts it: an older one, and the entries behind it, hold the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from pulsar_on_spark.metadata.log.chain import OvertakenError
from pulsar_on_spark.metadata.log.entry import LOG, DataFile, decode_add
from pulsar_on_spark.storage.objects.contract import Created, ObjectStore

_CHECKPOINT: Final = re.compile(rf"{LOG}/(\d{{20}})\.checkpoint\.parquet")
_ENTRY: Final = re.compile(rf"{LOG}/(\d{{20}})\.json")
_COLUMNS: Final = ("txn", "add", "remove")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a table at a version.

    Attributes:
        files: The active files, by name.
        keys: The versions of all keys.
        removed_ms: The files that were removed lately, and when, in milliseconds since 1970.
    """

    version: int
    files: Mapping[str, DataFile]
    keys: Mapping[str, int]
    removed_ms: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Listing:
    """The versions of the entries and checkpoints of a log, from one listing, each in order."""

    entries: tuple[int, ...]
    checkpoints: tuple[int, ...]


def list_log(objects: ObjectStore, behind: int = -1) -> Listing:
    """List the log's objects of versions above `behind`."""
    after = f"{LOG}/{behind:020d}.~" if behind >= 0 else ""
    keys = [listed.key for listed in objects.list_after(LOG, after)]
    entries = (match for key in keys if (match := _ENTRY.fullmatch(key)))
    checkpoints = (match for key in keys if (match := _CHECKPOINT.fullmatch(key)))
    return Listing(tuple(int(match[1]) for match in entries), tuple(int(match[1]) for match in checkpoints))


def checkpoint_key(version: int) -> str:
    """The key of a checkpoint in its table."""
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def checksum_key(version: int) -> str:
    """The key of a checkpoint's checksum."""
    return f"_checksums/{version:020d}.checkpoint"


def pointed_checkpoint(objects: ObjectStore) -> int | None:
    """The version that `_last_checkpoint` names: a hint, for listings that begin there; None without a legible one."""
    pointer = objects.fetch(f"{LOG}/_last_checkpoint")
    try:
        return None if pointer is None else int(json.loads(pointer.content)["version"])
    except (ValueError, KeyError, TypeError):
        return None


def read_checkpoint(objects: ObjectStore, version: int) -> Snapshot | None:
    """Read a checkpoint; None if it has no checksum, or is not what was written."""
    checksum = objects.fetch(checksum_key(version))
    checkpoint = objects.fetch(checkpoint_key(version))
    if checksum is None or checkpoint is None:
        return None
    if not _is_checksum(checksum.content, version, checkpoint.content):
        return None
    return decode_checkpoint(version, checkpoint.content)


def vouch_for_checkpoint(objects: ObjectStore, expected: Snapshot) -> bool:
    """Compare a checkpoint that was just written with its writer's state, and put its checksum.

    Two processes may write one checkpoint at once, with other bytes; the checksum becomes that of the last one.

    Returns:
        False if it holds something else.

    Raises:
        OvertakenError: it is gone already: the log has moved on.
    """
    version = expected.version
    while (checkpoint := objects.fetch(checkpoint_key(version))) is not None:
        written = decode_checkpoint(version, checkpoint.content)
        if (written.files, written.keys) != (expected.files, expected.keys):
            return False
        checksum = _checksum(checkpoint.content)
        answer = objects.create(checksum_key(version), checksum)
        if isinstance(answer, Created) or answer.content == checksum:
            return True
        objects.replace(checksum_key(version), checksum, answer.version)
    raise OvertakenError(f"checkpoint {version} was cleaned up")


def decode_checkpoint(version: int, content: bytes) -> Snapshot:
    """Decode a checkpoint's content.

    Raises:
        pyarrow.ArrowException, OSError, KeyError, ValueError: it is not one.
    """
    # Arrow's threads must not hold a Python file: releasing it while the process ends would abort the process.
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    table = file.read(columns=list(_COLUMNS), use_threads=False)
    txn, add, remove = (_present(table, name) for name in _COLUMNS)
    files = map(decode_add, add.to_pylist())
    return Snapshot(
        version,
        {file.name: file for file in files},
        dict(zip(_field(txn, "appId"), _field(txn, "version"), strict=True)),
        dict(zip(map(unquote, _field(remove, "path")), _field(remove, "deletionTimestamp"), strict=True)),
    )


def _present(table: pa.Table, name: str) -> pa.StructArray:
    return table.column(name).combine_chunks().drop_null()


def _field(structs: pa.StructArray, name: str) -> list[Any]:
    values: list[Any] = structs.field(name).to_pylist()
    return values


def _checksum(content: bytes) -> bytes:
    return json.dumps({"size": len(content), "crc32c": f"{crc32c(content):08x}"}).encode()


def _is_checksum(checksum: bytes, version: int, content: bytes) -> bool:
    """Compare a checkpoint with a checksum; format 1 has a list of the checksums of all active files, too."""
    try:
        stored = json.loads(checksum.partition(b"\n")[0])
        if isinstance(stored, list):
            return bool(stored[1].get(checkpoint_key(version)) == [len(content), crc32c(content)])
    except (ValueError, IndexError, AttributeError):
        return False
    return checksum == _checksum(content)
