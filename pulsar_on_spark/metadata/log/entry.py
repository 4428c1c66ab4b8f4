"""The entries of a table's log: valid Delta, with fields of this project in `commitInfo`.

| field | content |
|---|---|
| `pulsarpyToken` | the random token by which a writer recognises its own entry |
| `pulsarpyPrevious` | the token of the previous entry, which links the entries |
| `pulsarpyBoot` | the boot of the machine that wrote the entry (`boot_id`); only on local disks |
| `pulsarpyCrc` | the CRC32C of the whole text, computed with eight zeros in place of the CRC |

The checksum of a data file is a tag of its `add` action, because checkpoints keep tags.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from crc32c import crc32c

TOKEN_FIELD: Final = "pulsarpyToken"
PREVIOUS_FIELD: Final = "pulsarpyPrevious"
BOOT_FIELD: Final = "pulsarpyBoot"
CRC_FIELD: Final = "pulsarpyCrc"
CRC_TAG: Final = "pulsarpyCrc"
LOG: Final = "_delta_log"
ENTRY: Final = re.compile(rf"{LOG}/(\d{{20}})\.json")
"""The pattern of entries' keys."""
_NO_CRC: Final = "00000000"
_WRITER_DIGITS: Final = 16


class BrokenEntryError(Exception):
    """The text of a log entry differs from the text that its writer wrote, or is not an entry."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """An active data file of a table.

    Attributes:
        name: The file's key, relative to the table.
        size: The file's length in bytes.
        rows: The number of rows; 0 if another program left this number out of the statistics.
        min_seq: The smallest `seq` of the rows; 0 if the statistics have none.
        max_seq: The largest `seq` of the rows; 0 if the statistics have none.
        crc: The CRC32C of the file's content; None for a file that format 1 or another program wrote.
        stats: The statistics as Delta's JSON text; if it is "", `encode_add` writes `rows`, `min_seq` and `max_seq`.
    """

    name: str
    size: int
    rows: int
    min_seq: int
    max_seq: int
    crc: int | None
    stats: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Tip:
    """The last entry of a log, whose token the next entry must name.

    Attributes:
        version: The entry's number.
        token: The entry's token.
        is_chained: True if the entry names its predecessor; False if format 1 or another program wrote it.
    """

    version: int
    token: str
    is_chained: bool


BEFORE_FIRST: Final = Tip(-1, "", is_chained=False)
"""The tip of a log without entries."""


@dataclass(frozen=True, slots=True)
class Content:
    """The actions of an entry.

    Attributes:
        added: The files that the entry adds.
        removed: The names of the files that the entry removes.
        keys: The compare-and-set keys that the entry moves, with their new versions.
        head: Further actions: the protocol and metadata of a new table, or changed metadata.
        is_rearrangement: True if the added files have the same rows as the removed files (Delta's `dataChange` false).
    """

    added: Sequence[DataFile] = ()
    removed: Sequence[str] = ()
    keys: Mapping[str, int] = field(default_factory=dict)
    head: Sequence[Mapping[str, Any]] = ()
    is_rearrangement: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a log.

    Attributes:
        version: The entry's number.
        token: The random token by which its writer recognizes the entry.
        previous: The token of the previous entry; None if another program, or format 1, wrote the entry.
        boot: The boot of the machine that wrote the entry; None on an object store.
        written_ms: The time at which the writer began to write the entry, in milliseconds since 1970.
        added: The files that the entry adds.
        removed: The names of the files that the entry removes.
        keys: The compare-and-set keys that the entry moves, with their new versions.
        head: The table's protocol and metadata, in entries that create the table or change them.
        changes_rows: True if an action changes the rows of the table, instead of rearranging them (`dataChange`).
        operation: The operation that the entry names, for example "WRITE".
    """

    version: int
    token: str
    previous: str | None
    boot: str | None
    written_ms: int
    added: tuple[DataFile, ...]
    removed: tuple[str, ...]
    keys: Mapping[str, int]
    head: Mapping[str, Mapping[str, Any]]
    changes_rows: bool
    operation: str

    @property
    def writer(self) -> str:
        """The name of the `TableLog` that wrote the entry (see `new_token`)."""
        return self.token[:_WRITER_DIGITS]

    @property
    def tip(self) -> Tip:
        """The entry as the last entry of a log."""
        return Tip(self.version, self.token, is_chained=self.previous is not None)


def new_writer() -> str:
    """Return a new random name for a `TableLog` that writes entries."""
    return uuid.uuid4().hex[:_WRITER_DIGITS]


def new_token(writer: str) -> str:
    """Return a new random token for a writer's next commit; it begins with the writer's name."""
    return writer + uuid.uuid4().hex[:_WRITER_DIGITS]


def entry_key(version: int) -> str:
    """Return the key of an entry, relative to its table."""
    return f"{LOG}/{version:020d}.json"


def encode_entry(content: Content, token: str, previous: str, boot: str | None) -> bytes:
    """Return the text of an entry.

    Args:
        content: The entry's actions.
        token: The entry's token.
        previous: The token of the previous entry; "" in the first entry.
        boot: The machine's boot id; None on an object store.
    """
    now_ms = int(time.time() * 1000)
    info: dict[str, Any] = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {},
        "engineInfo": "pulsar_on_spark",
        TOKEN_FIELD: token,
        PREVIOUS_FIELD: previous,
        CRC_FIELD: _NO_CRC,
    }
    if boot is not None:
        info[BOOT_FIELD] = boot
    actions: list[Mapping[str, Any]] = [{"commitInfo": info}, *content.head]
    actions += ({"txn": {"appId": key, "version": version}} for key, version in content.keys.items())
    change = {"dataChange": False} if content.is_rearrangement else {}
    actions += ({"remove": encode_remove(name, now_ms) | change} for name in content.removed)
    actions += ({"add": encode_add(file, now_ms) | change} for file in content.added)
    text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()
    return text.replace(_crc_text(_NO_CRC), _crc_text(f"{crc32c(text):08x}"), 1)


def decode_entry(version: int, text: bytes, *, is_shared: bool = False) -> Entry:
    """Decode an entry.

    Args:
        version: The entry's number.
        text: The entry's content.
        is_shared: True for a log to which other programs may write, too; the token of their entries is a checksum.

    Raises:
        BrokenEntryError: the text differs from the written one, or is not an entry.
    """
    info: dict[str, Any] = {}
    added: list[DataFile] = []
    removed: list[str] = []
    keys: dict[str, int] = {}
    head: dict[str, Mapping[str, Any]] = {}
    changes_rows = False
    try:
        for line in text.splitlines():
            ((kind, action),) = json.loads(line).items()
            changes_rows |= kind in ("add", "remove") and action.get("dataChange", True) is not False
            if kind == "commitInfo":
                info = action
            elif kind == "add":
                added.append(decode_add(action))
            elif kind == "remove":
                removed.append(unquote(action["path"]))
            elif kind == "txn":
                keys[str(action["appId"])] = int(action["version"])
            elif kind in ("protocol", "metaData"):
                head[kind] = action
        _check_crc(text, info)
        token, previous, boot = (info.get(name) for name in (TOKEN_FIELD, PREVIOUS_FIELD, BOOT_FIELD))
        written_ms = int(info.get("timestamp", 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenEntryError(str(error)) from error
    if is_shared and token is None:
        token = f"{crc32c(text):08x}"
    operation = str(info.get("operation", ""))
    return Entry(
        version,
        token or "",
        previous,
        boot,
        written_ms,
        tuple(added),
        tuple(removed),
        keys,
        head,
        changes_rows,
        operation,
    )


def decode_add(action: Mapping[str, Any]) -> DataFile:
    """Decode an `add` action of an entry or a checkpoint."""
    stats = json.loads(action["stats"]) if action.get("stats") else {}
    crc = dict(action.get("tags") or {}).get(CRC_TAG)
    min_seq, max_seq = (stats.get(limits, {}).get("seq") for limits in ("minValues", "maxValues"))
    return DataFile(
        unquote(action["path"]),
        int(action["size"]),
        int(stats.get("numRecords", 0)),
        min_seq if isinstance(min_seq, int) else 0,  # a history table may have a column of this name
        max_seq if isinstance(max_seq, int) else 0,
        None if crc is None else int(crc, 16),
        action.get("stats") or "{}",  # not "", which would count its rows as none when it is written again
    )


def encode_add(file: DataFile, now_ms: int) -> dict[str, Any]:
    """Encode an `add` action."""
    limits = {"minValues": {"seq": file.min_seq}, "maxValues": {"seq": file.max_seq}, "nullCount": {"seq": 0}}
    stats = file.stats or json.dumps({"numRecords": file.rows, **limits}, separators=(",", ":"))
    return {
        "path": file.name,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": stats,
        "tags": {} if file.crc is None else {CRC_TAG: f"{file.crc:08x}"},
    }


def encode_remove(name: str, now_ms: int) -> dict[str, Any]:
    """Encode a `remove` action."""
    return {"path": name, "deletionTimestamp": now_ms, "dataChange": True}


def _crc_text(crc: str) -> bytes:
    return f'"{CRC_FIELD}":"{crc}"'.encode()


def _check_crc(text: bytes, info: Mapping[str, Any]) -> None:
    crc = info.get(CRC_FIELD)
    # In a name of a column, quotation marks are escaped.
    is_own = any(f'"{name}":'.encode() in text for name in (CRC_FIELD, PREVIOUS_FIELD))
    if not text or (crc is None and is_own):
        raise ValueError("it is cut off")
    if crc is not None and f"{crc32c(text.replace(_crc_text(crc), _crc_text(_NO_CRC), 1)):08x}" != crc:
        raise ValueError("its checksum is wrong")
