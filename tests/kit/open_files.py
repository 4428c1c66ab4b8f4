"""The open files of this process: which there are below a directory, and none to be had."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def open_files_under(directory: Path) -> list[Path]:
    """Files below the directory that are open; elsewhere other tests' threads open and close theirs meanwhile."""
    found = (Path(os.path.realpath(each)) for each in Path("/proc/self/fd").iterdir())
    return [each for each in found if each.is_relative_to(directory)]


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Every open() of this process fails with EMFILE, delta-rs's too."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
