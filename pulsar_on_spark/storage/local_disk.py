"""The check that a journal is on a local disk, and not on a file system whose clients have caches of their own.

The fence is a rename that the writer must see immediately. This is certain within one kernel, but not on network or
user-space file systems, whose clients cache names and attributes for a while. Both the writer and the recoverer of a
journal check, because a fence that another host sets may reach the writer late. Sealers, trimmers and readers need not
check: they act on checksummed frames and committed records only, so a stale cache merely delays them.
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
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0x19830326: "BeeGFS",
    0x20030528: "OrangeFS",
    0x013111A8: "IBRIX",
    0xAAD7AAEA: "PanFS",
    0xBEEFDEAD: "StorNext",
    0x61636673: "ACFS",
    0x73757245: "Coda",
    0x0000564C: "NCP",
    0x786F4256: "vboxsf",
    0xBACBACBC: "vmhgfs",
    0x7C7C6673: "prl_fs",
}
"""Refused file systems by `f_type` of statfs(2): other hosts may change them, or a user-space process serves them."""
_STATFS_BYTES = 256
"""Size of the buffer for statfs(2), larger than the result on any Linux; the result's first word is `f_type`."""


def refused_file_system(directory: Path) -> str | None:
    """Return the name of the file system under `directory` if a journal must not be on it, else None.

    Systems other than Linux are not checked: users must choose a local disk themselves. A directory that cannot be
    examined is not refused either, as no file can be made in it.
    """
    kind = file_system_type(directory)
    return None if kind is None else _REFUSED.get(kind)


def file_system_type(directory: Path) -> int | None:
    """Return `f_type` of the file system under `directory`; None if it cannot be examined, or not on Linux."""
    if sys.platform != "linux":
        return None
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(directory), buffer):
        return None
    word = int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder)
    return word & 0xFFFFFFFF


def require_local(directory: Path) -> None:
    """Check that a journal may be under `directory`.

    Raises:
        StoragePathError: the directory is on a network or user-space file system.
    """
    name = refused_file_system(directory)
    if name is not None:
        raise StoragePathError(
            f"Storage path {directory} is on {name}, where a journal's writer may not see that it was fenced: give a "
            "directory on a local disk."
        )
