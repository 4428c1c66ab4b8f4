"""The entries of a table's log: valid Delta, with fields of this project in `commitInfo`.

| field | content |
|---|---|
| `pulsarpyToken` | the random token by which a writer recognises its own entry |
| `pulsarpyPrevious` | the token of the entry before it, which links the entries |
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
    """An entry's text is not what its writer wrote."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """An active data file of a table.

    Attributes:
        name: Its key in the table.
        size: Its length in bytes.
        rows: The number of its rows; 0 if another program has left it out of the statistics.
        min_seq: The smallest `seq` of its rows.
        max_seq: The largest `seq` of its rows.
        crc: The CRC32C of its content; None for a file that format 1 or another program wrote.
        stats: Its statistics as Delta's JSON text; "" to write the number of rows and the limits of `seq`.
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
    """The last entry of a log, which the next one must name.

    Attributes:
        is_chained: False if format 1 wrote the entry; entries of format 1 do not name their predecessors.
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
        added: The files that it adds.
        removed: The names of the files that it removes.
        keys: The compare-and-set keys that it moves, with their new versions.
        head: Further actions: the protocol and metadata of a new table, or changed metadata.
        is_rearrangement: True if the added files have the rows of the removed ones, so that the data do not change.
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
        previous: The token of the entry before it; None if another program, or format 1, wrote the entry.
        written_ms: The time at which its writer began to write it, in milliseconds since 1970.
        head: The table's protocol and metadata, in the entry that creates the table.
        changes_rows: True if an action says that it changes the rows of the table, instead of rearranging them.
        operation: What its writer says that it did.
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
        """The name of the handle that wrote the entry (see `new_token`)."""
        return self.token[:_WRITER_DIGITS]

    @property
    def tip(self) -> Tip:
        """The entry as the tip that the next entry must name."""
        return Tip(self.version, self.token, is_chained=self.previous is not None)


def new_writer() -> str:
    """Draw a random name for a handle that writes entries."""
    return uuid.uuid4().hex[:_WRITER_DIGITS]


def new_token(writer: str) -> str:
    """Draw a random token for a writer's next commit; it begins with the writer's name."""
    return writer + uuid.uuid4().hex[:_WRITER_DIGITS]


def entry_key(version: int) -> str:
    """The key of an entry in its table."""
    return f"{LOG}/{version:020d}.json"


def encode_entry(content: Content, token: str, previous: str, boot: str | None) -> bytes:
    """Encode an entry."""
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
        text: Its content.
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
