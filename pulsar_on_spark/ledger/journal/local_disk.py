"""Where a journal must not be: on file systems that cache names or bytes apart from other hosts'.

The fence is a rename that the writer must see at once. That holds on one kernel and not on network or user-space file
systems, whose clients keep names and attributes for a while (pitfall D1).
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from pulsar_on_spark.model.errors import StoragePathError

_REFUSED = {
    0x6969: "NFS",
    0x65735546: "FUSE",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x01021997: "9P",
    0x6A656A63: "virtiofs",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x013111A8: "OCFS2",
    0x01161970: "GFS2",
}
"""`f_type` of statfs(2): refused are those that other hosts may change, or that a process of the user serves."""
_STATFS_BYTES = 256
"""More than any Linux has; its first word is `f_type`."""


def refused_file_system(directory: Path) -> str | None:
    """The name of the file system under `directory` if a journal must not be there; None if it may.

    Systems other than Linux are not asked: there, it is the user's part. A directory that cannot be examined is not
    refused either: no file can be made in it.
    """
    if sys.platform != "linux":
        return None
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(directory), found):
        return None
    word = int.from_bytes(found.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder)
    return _REFUSED.get(word & 0xFFFFFFFF)


def require_local(directory: Path) -> None:
    """Make sure that a journal may be under `directory`.

    Raises:
        StoragePathError: it is on a network or user-space file system.
    """
    name = refused_file_system(directory)
    if name is not None:
        raise StoragePathError(
            f"Storage path {directory} is on {name}, where a journal's writer may not see that it was fenced: give a "
            "directory on a local disk."
        )
