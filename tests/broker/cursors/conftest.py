"""A root with the topic `t`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_on_spark.root import Root


@pytest.fixture
def root(memory_path: Path) -> Root:
    made = Root.create(memory_path / "root")
    made.create_topic("t")
    return made
