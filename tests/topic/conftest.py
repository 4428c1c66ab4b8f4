"""A real root in memory, and what tests do to the files under it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.segment_names import segment_key


@pytest.fixture
def root(memory_path: Path) -> Root:
    return Root.create(memory_path / "root")


@pytest.fixture
def copy_of() -> Callable[[Root, FileRecord, int], Path]:
    """Return the path of a copy of a segment file."""

    def locate(root: Root, file: FileRecord, path_id: int) -> Path:
        path = root.current_storage_paths()[PathId(path_id)]
        assert isinstance(path.place, Path)
        return path.place / segment_key(file.names[path_id])

    return locate


@pytest.fixture
def stored_files() -> Callable[[Root], list[str]]:
    """Names of everything under the storage paths' segment directories."""

    def find(root: Root) -> list[str]:
        return sorted(path.name for path in root.path.glob("storage/*/segments/*/*"))

    return find


@pytest.fixture
def start_python() -> Callable[..., subprocess.Popen[str]]:
    """Start a script in a process of its own; its standard input and output are pipes."""

    def start(script: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    return start
