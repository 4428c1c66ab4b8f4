"""A root with the topic `t`, and what a subscription has left to deliver."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_on_spark.topic.root import Root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    made.create_topic("t")
    return made
