"""Search for this host's processes with open files under a directory, which prevent its disk from being unmounted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def processes_with_open_files(directory: Path) -> Mapping[int, int]:
    """Return the number of open files under a directory by process id; deleted files count, too.

    Processes of other users are visible to root only. Without `/proc`, no process is visible.
    """
    prefix = f"{os.path.realpath(directory)}/"
    counts: Counter[int] = Counter()
    with suppress(OSError):
        for process in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):  # the process has ended, or is another user's
                counts.update({int(process): _count_under(prefix, f"/proc/{process}/fd")})
    return +counts


def _count_under(prefix: str, descriptors: str) -> int:
    count = 0
    for name in os.listdir(descriptors):
        with suppress(OSError):  # the file was closed meanwhile
            count += os.readlink(f"{descriptors}/{name}").startswith(prefix)
    return count
