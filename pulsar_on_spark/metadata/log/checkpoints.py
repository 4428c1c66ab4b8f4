"""Checkpoints of a log, as Delta defines them, and their checksums beside the log.

    <table>/_delta_log/<version>.checkpoint.parquet
    <table>/_checksums/<version>.checkpoint            length and CRC32C of the checkpoint
    <table>/_delta_log/_last_checkpoint                the pointer to the newest checkpoint, only a hint

They are written in this order, and each is complete and durable before the next. A checkpoint without a checksum, or
with a wrong checksum, is ignored: an older checkpoint and the entries after it have the same content.
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

from pulsar_on_spark.metadata.log.entry import ENTRY, LOG, DataFile, decode_add, encode_add, encode_remove
from pulsar_on_spark.model.errors import ObjectsUnreachableError
from pulsar_on_spark.storage.objects.contract import Exists, ObjectStore

_CHECKPOINT: Final = re.compile(rf"{LOG}/(\d{{20}})\.checkpoint\.parquet")
_COLUMNS: Final = ("txn", "add", "remove", "metaData", "protocol")
_POINTER: Final = f"{LOG}/_last_checkpoint"
_MAPS: Final = frozenset(("partitionValues", "tags", "options", "configuration"))
_MAP: Final = pa.map_(pa.string(), pa.string())
_SCHEMA: Final = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64())])),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _MAP),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                    ("tags", _MAP),
                ]
            ),
        ),
        ("remove", pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())])),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _MAP)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("createdTime", pa.int64()),
                    ("configuration", _MAP),
                ]
            ),
        ),
        ("protocol", pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])),
    ]
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a table at a version.

    Attributes:
        files: The active files, by name.
        keys: The versions of all keys.
        removed_ms: By name, the time at which a file was removed from the table, in milliseconds since 1970; only
            recent removals are kept.
        head: The table's protocol and metadata, from the newest entries that have them.
    """

    version: int
    files: Mapping[str, DataFile]
    keys: Mapping[str, int]
    removed_ms: Mapping[str, int]
    head: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Listing:
    """The versions of the entries and checkpoints of a log, from one listing, each in order."""

    entries: tuple[int, ...]
    checkpoints: tuple[int, ...]


def list_log(objects: ObjectStore, behind: int = -1) -> Listing:
    """List the log's objects of versions above `behind`."""
    after = f"{LOG}/{behind:020d}.~" if behind >= 0 else ""
    keys = [listed.key for listed in objects.list_after(LOG, after)]
    entries = (match for key in keys if (match := ENTRY.fullmatch(key)))
    checkpoints = (match for key in keys if (match := _CHECKPOINT.fullmatch(key)))
    return Listing(tuple(int(match[1]) for match in entries), tuple(int(match[1]) for match in checkpoints))


def checkpoint_key(version: int) -> str:
    """Return the key of a checkpoint, relative to its table."""
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def checksum_key(version: int) -> str:
    """Return the key of a checkpoint's checksum, relative to its table."""
    return f"_checksums/{version:020d}.checkpoint"


def pointed_checkpoint(objects: ObjectStore) -> int | None:
    """Return the version that `_last_checkpoint` names, from which a listing may begin; None if it cannot be read."""
    try:
        pointer = objects.fetch(_POINTER)
        return None if pointer is None else int(json.loads(pointer.content)["version"])
    except (ObjectsUnreachableError, ValueError, KeyError, TypeError):
        return None


def read_checkpoint(objects: ObjectStore, version: int) -> Snapshot | None:
    """Read a checkpoint; None if it is absent, or its checksum is absent or wrong."""
    checksum = objects.fetch(checksum_key(version))
    if checksum is None:
        return None
    checkpoint = objects.fetch(checkpoint_key(version))
    if checkpoint is None or not _is_checksum(checksum.content, version, checkpoint.content):
        return None
    return decode_checkpoint(version, checkpoint.content)


def write_checkpoint(objects: ObjectStore, snapshot: Snapshot) -> None:
    """Write a checkpoint durably, unless another process has done so.

    Raises:
        ValueError: a checkpoint of this version exists and has other content.
    """
    content = encode_checkpoint(snapshot)
    answer = objects.create(checkpoint_key(snapshot.version), content)
    if isinstance(answer, Exists):
        content = answer.content
        present = decode_checkpoint(snapshot.version, content)
        if (present.files, present.keys) != (snapshot.files, snapshot.keys):
            raise ValueError(f"checkpoint {snapshot.version} has other content")
    objects.create(checksum_key(snapshot.version), _checksum(content))
    pointer = {"version": snapshot.version, "size": _size(snapshot), "sizeInBytes": len(content)}
    _point(objects, json.dumps({**pointer, "numOfAddFiles": len(snapshot.files)}).encode())


def _point(objects: ObjectStore, pointer: bytes) -> None:
    """Replace the pointer; if another process does so at the same time, either may win."""
    answer = objects.create(_POINTER, pointer)
    if isinstance(answer, Exists):
        objects.replace(_POINTER, pointer, answer.version)


def encode_checkpoint(snapshot: Snapshot) -> bytes:
    """Return the Parquet content of a checkpoint of the snapshot."""
    rows: list[dict[str, Any]] = [{name: _with_items(action)} for name, action in snapshot.head.items()]
    rows += ({"txn": {"appId": key, "version": version}} for key, version in snapshot.keys.items())
    rows += ({"add": _with_items(encode_add(file, 0))} for file in snapshot.files.values())
    rows += ({"remove": encode_remove(name, at_ms)} for name, at_ms in snapshot.removed_ms.items())
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _size(snapshot: Snapshot) -> int:
    """Return the number of actions in a checkpoint of the snapshot."""
    return sum(map(len, (snapshot.head, snapshot.keys, snapshot.files, snapshot.removed_ms)))


def _with_items(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action with each map as a list of its items, which is how Arrow takes maps."""
    return {name: _items(name, value) if isinstance(value, dict) else value for name, value in action.items()}


def _items(name: str, value: Mapping[str, Any]) -> Any:
    return list(value.items()) if name in _MAPS else _with_items(value)


def decode_checkpoint(version: int, content: bytes) -> Snapshot:
    """Return the snapshot in a checkpoint's Parquet content.

    Raises:
        pyarrow.ArrowException, OSError, KeyError, ValueError: the content is not a checkpoint.
    """
    # Arrow's threads must not hold a Python file: releasing it while the process ends would abort the process.
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    table = file.read(columns=list(_COLUMNS), use_threads=False)
    txn, add, remove = (_present(table, name) for name in ("txn", "add", "remove"))
    files = map(decode_add, add.to_pylist())
    heads = {name: _present(table, name).to_pylist(maps_as_pydicts="strict") for name in ("protocol", "metaData")}
    head = {name: actions[0] for name, actions in heads.items() if actions}
    return Snapshot(
        version,
        {file.name: file for file in files},
        dict(zip(_field(txn, "appId"), _field(txn, "version"), strict=True)),
        dict(zip(map(unquote, _field(remove, "path")), _field(remove, "deletionTimestamp"), strict=True)),
        head,
    )


def _present(table: pa.Table, name: str) -> pa.StructArray:
    return table.column(name).combine_chunks().drop_null()


def _field(structs: pa.StructArray, name: str) -> list[Any]:
    values: list[Any] = structs.field(name).to_pylist()
    return values


def _checksum(content: bytes) -> bytes:
    return json.dumps({"size": len(content), "crc32c": f"{crc32c(content):08x}"}).encode()


def _is_checksum(checksum: bytes, version: int, content: bytes) -> bool:
    """Return True if a checkpoint matches its checksum object, which in format 1 has checksums of all active files."""
    try:
        stored = json.loads(checksum.partition(b"\n")[0])
        if isinstance(stored, list):
            return bool(stored[1].get(checkpoint_key(version)) == [len(content), crc32c(content)])
    except (ValueError, IndexError, AttributeError):
        return False
    return checksum == _checksum(content)
