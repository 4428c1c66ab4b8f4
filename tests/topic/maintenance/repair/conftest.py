"""Invariants of a root after any interruption, and helpers that tests of repair share."""

from __future__ import annotations

from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.reports import read_reports
from pulsar_on_spark.topic.catalog.catalog import live_files
from pulsar_on_spark.topic.maintenance.repair import scrub


def assert_consistent(root: Root) -> None:
    """Every live file has a good copy among those that its record names."""
    view = root.store.view()
    paths = root.storage_paths(view)
    for file in live_files(view).values():
        there = [paths[PathId(each)] for each in file.copies if PathId(each) in paths]
        assert any(scrub.defect(file, path) is None for path in there), f"{file.file_id} has no good copy"


def assert_whole(root: Root, copies: int = 3) -> None:
    """Every live file has its copies, each of them good, on paths that may hold them, and no other copy lies there."""
    view = root.store.view()
    paths = root.journal_paths(view)
    live = live_files(view)
    named = set()
    for file in live.values():
        assert len(set(file.copies)) == copies, file
        for path_id in file.copies:
            record = view.get(PathRecord, str(path_id))
            assert record is not None
            assert record.state in ("writable", "read-only")
            assert scrub.defect(file, paths[PathId(path_id)]) is None
            named.add(paths[PathId(path_id)].segment_file(file.names[path_id]))
    extra = {
        stored
        for path in paths.values()
        for stored in path.directory.glob("segments/*/*.arrow")
        if stored not in named and stored.name.partition(".")[0] in live
    }
    assert not extra
    assert read_reports(root.path) == []


def files(root: Root) -> list[FileRecord]:
    return root.store.view().all(FileRecord)
