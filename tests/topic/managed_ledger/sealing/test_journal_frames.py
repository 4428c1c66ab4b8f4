"""The size of what is unsealed, on object stores of which one fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.journal.object_file import ObjectFile
from pulsar_on_spark.ledger.journal.object_format import ObjectHead
from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.topic.managed_ledger.sealing.journal_frames import JournalFrames, JournalLag
from tests.ledger.journal.journal_runs import NAME
from tests.ledger.journal.test_object_journal import LIMITS, THREE, Stores, written


def test_another_copy_tells_the_size_if_one_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = Stores(tmp_path, 3)
    written(stores, THREE)
    sizes = ObjectFile.sizes
    failing = {PathId(0)}

    def sizes_unless_away(file: ObjectFile) -> Mapping[int, int]:
        if file.path.path_id in failing:
            raise StoragePathError("the store is busy")
        return sizes(file)

    monkeypatch.setattr(ObjectFile, "sizes", sizes_unless_away)

    lag = JournalFrames(NAME, lambda: stores.paths, 0).lag(stores.record)
    assert lag.bytes > 0
    assert lag.unknown_files == 0
    failing |= set(stores.paths)
    files = len(stores.record.fragments)
    assert JournalFrames(NAME, lambda: stores.paths, 0).lag(stores.record) == JournalLag(0, unknown_files=files)


def test_a_store_that_is_away_is_asked_once_for_the_sizes_of_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request waits for a minute."""
    stores = Stores(tmp_path, 3)
    written(stores, THREE, limits=replace(LIMITS, roll_bytes=1_000), files=3)
    read_birth, asked = ObjectFile.read_birth, []

    def read_birth_unless_away(file: ObjectFile) -> ObjectHead:
        if file.path.path_id == 0:
            asked.append(file)
            raise StoragePathError("the store does not answer")
        return read_birth(file)

    monkeypatch.setattr(ObjectFile, "read_birth", read_birth_unless_away)
    frames = JournalFrames(NAME, lambda: stores.paths, 0)
    for _ in range(3):
        assert frames.lag(stores.record).unknown_files == 0
    assert len(asked) == 1
