"""Which files this process has open below a directory."""

from __future__ import annotations

import os
from pathlib import Path


def open_files_under(directory: Path) -> list[Path]:
    """Files below the directory that are open; elsewhere other tests' threads open and close theirs meanwhile."""
    found = (Path(os.path.realpath(each)) for each in Path("/proc/self/fd").iterdir())
    return [each for each in found if each.is_relative_to(directory)]
