from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.log.log_entry import entry_path, parse_entry, read_entry
from pulsar_on_spark.metadata.store import Change, MetadataStore


def test_every_cut_of_every_kind_of_entry_is_noticed(
    root: Path, store: MetadataStore, put: Callable[..., None], short_folds: None
) -> None:
    put(store, "one")
    store.commit(lambda view: Change(keys={"q/1": 5, "q/2": 6}))
    for number in range(20):
        put(store, "one", note=number)
    store.append_cursors([CursorRow("t", "s", 0, 1, 1, 1, 1)])
    main, cursors = root / "metadata" / "main", root / "metadata" / "cursors"
    folds = [v for v in range(1, store._main.version + 1) if (entry := read_entry(main, v)) and entry.removed]
    assert folds
    for table, version in ((main, 0), (main, 2), (main, 3), (main, folds[0]), (cursors, 0), (cursors, 1)):
        text = entry_path(table, version).read_bytes()
        whole = parse_entry(version, text)
        assert whole.complete
        # Everything before the last closing brace is a loss.
        for length in range(len(text.rstrip())):
            assert not parse_entry(version, text[:length]).complete, (table, version, text[:length][-80:])
            assert not parse_entry(version, text[:length] + bytes(len(text) - length)).complete


def test_keys_and_token_are_read(root: Path, store: MetadataStore) -> None:
    store.commit(lambda view: Change(keys={"q/1": 5, 'q/"\n': 6}))
    entry = read_entry(root / "metadata" / "main", 2)
    assert entry is not None
    assert entry.complete
    assert entry.keys == {"q/1": 5, 'q/"\n': 6}
    assert entry.added == ()
    assert len(entry.token or "") == 32
    assert read_entry(root / "metadata" / "main", 3) is None


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            [{"commitInfo": {"operation": "WRITE", "operationMetrics": {"numFiles": "0", "numOutputRows": "0"}}}],
            id="an empty write of delta-spark",
        ),
        pytest.param(
            [
                {"commitInfo": {"operation": "STREAMING UPDATE", "operationMetrics": {"numAddedFiles": "0"}}},
                {"txn": {"appId": "a", "version": 1, "lastUpdated": 1}},
            ],
            id="an empty micro-batch of delta-spark",
        ),
        pytest.param([{"commitInfo": {"operation": "VACUUM END"}}], id="vacuum"),
        pytest.param([{"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}], id="no commitInfo at all"),
        pytest.param([{"commitInfo": {"operation": "X", "operationMetrics": None}}, {"domainMetadata": {}}], id="new"),
    ],
)
def test_entries_of_other_writers_are_complete(lines: list[dict[str, object]]) -> None:
    assert parse_entry(7, "\n".join(map(json.dumps, lines)).encode()).complete


@pytest.mark.parametrize("text", [b"", b"\n", b"\0\0\0", b"[]", b"null", b'{"add":{}}', b'{"add":null}', b"{}", b"1"])
def test_nonsense_is_broken(text: bytes) -> None:
    assert not parse_entry(7, text).complete
