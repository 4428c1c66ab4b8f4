"""docs/deploy.md: the broker accepts its settings file, and the unit starts it with that file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pulsar_on_spark.broker.runtime.settings import load

DOCS = Path(__file__).parents[2] / "docs"


def test_the_settings_file_is_accepted() -> None:
    file = DOCS / "broker.toml"
    settings = load(file, environment={})
    written = tomllib.loads(file.read_text())
    assert {name: getattr(settings, name) for name in written} == written


def test_the_unit_starts_the_broker_with_that_file_and_may_write_to_the_pages_paths() -> None:
    unit, page = (DOCS / "pulsarpy.service").read_text(), (DOCS / "deploy.md").read_text()
    (root,) = re.findall(r"pulsarpy init (/\S+)", page)
    assert f"broker --root {root} --config /etc/pulsarpy/broker.toml" in unit
    (writable,) = re.findall(r"^ReadWritePaths=(.*)$", unit, re.MULTILINE)
    paths = [Path(each.removeprefix("-")) for each in writable.split()]
    needed = [Path(root), *map(Path, re.findall(r"--storage-path (/\S+)", page))]
    assert len(needed) == 4
    assert [each for each in needed if not any(each.is_relative_to(path) for path in paths)] == []
