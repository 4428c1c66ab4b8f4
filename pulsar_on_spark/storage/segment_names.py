"""Names of segment files below a storage path: `segments/<2 letters>/<file id>[.<generation>].arrow`, or `.crc`."""

from __future__ import annotations

import re
from typing import Final

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import FileId, SegmentName

SEGMENTS: Final = "segments"
SEGMENT_SUFFIX: Final = ".arrow"
SIDECAR_SUFFIX: Final = ".crc"
_LEGAL: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{1,127}")
_FILE: Final = re.compile(
    r"(?P<file_id>[0-9A-Za-z][0-9A-Za-z_-]{1,127})(?:\.(?P<generation>[0-9a-f]{32}-[0-9a-f]{8}))?(?P<suffix>\.arrow|\.crc)"
)


def folder_of(name: SegmentName) -> str:
    """Return the folder of a copy's files below the storage path.

    Raises:
        InvalidArgumentError: the file's id is not a valid file name.
    """
    if not _LEGAL.fullmatch(name.file_id):
        raise InvalidArgumentError(f"File id {name.file_id!r} is not a valid file name: use letters, digits, _ and -.")
    return f"{SEGMENTS}/{name.file_id[:2]}"


def segment_key(name: SegmentName) -> str:
    """Return the file or key of a copy below the storage path (raises as `folder_of`)."""
    return f"{folder_of(name)}/{name}{SEGMENT_SUFFIX}"


def sidecar_key(name: SegmentName) -> str:
    """Return the file or key of the sidecar of a copy with many batches (raises as `folder_of`)."""
    return f"{folder_of(name)}/{name}{SIDECAR_SUFFIX}"


def parse_file_name(file_name: str) -> tuple[SegmentName, bool] | None:
    """Return the name of the copy that a file belongs to, and True if the file is a sidecar; None for other files."""
    found = _FILE.fullmatch(file_name)
    if found is None:
        return None
    name = SegmentName(FileId(found["file_id"]), found["generation"] or "")
    return name, found["suffix"] == SIDECAR_SUFFIX
