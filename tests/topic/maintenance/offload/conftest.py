"""A root with a cold path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from tests.kit import messages


def root_with_cold_path(folder: Path, values: Sequence[bytes]) -> Root:
    """Make a root with the topic `t`, a file for each of its values, and the cold path `cold` beside the root."""
    made = Root.create(folder / "root")
    made.create_topic("t")
    for value in values:
        messages.write(made, "t", [value])
    storage_paths.add(made, folder / "cold", "archive", role="cold")
    return made
