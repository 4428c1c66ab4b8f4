"""A real root in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_on_spark.root import Root


@pytest.fixture
def root(memory_path: Path) -> Root:
    return Root.create(memory_path / "root")
