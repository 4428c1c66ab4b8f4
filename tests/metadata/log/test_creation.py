from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pulsar_on_spark.metadata.log.creation import check_location, create_table
from pulsar_on_spark.metadata.log.entry import entry_key
from pulsar_on_spark.metadata.log.local_log import LocalLog
from pulsar_on_spark.metadata.log.table_log import TableLog
from pulsar_on_spark.model.errors import CorruptMetadataError, InvalidArgumentError

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("seq", pa.int64(), nullable=False)])


def _made(folder: Path) -> TableLog:
    folder.mkdir(parents=True, exist_ok=True)
    store = LocalLog(folder, folder.parent / "lock")
    create_table(store, SCHEMA)
    log = TableLog(store)
    log.refresh()
    log.taken_in()
    return log


@pytest.mark.parametrize(
    "name", ["plain", "with space", "größe 日本", "50%", "a+b&c=d", "x#y?z", "~tilde'quote\"", "{a}"]
)
def test_roots_may_have_such_names(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "table"
    log = _made(folder)
    log.append(pa.table({"id": ["a"], "seq": [1]}, schema=SCHEMA), {"key": 1}, log.new_token())
    assert log.checkpoint()
    assert _made(folder).version == 1
    assert DeltaTable(str(folder)).to_pyarrow_table().to_pylist() == [{"id": "a", "seq": 1}]
    assert {path.name for path in tmp_path.iterdir()} == {name}


@pytest.mark.parametrize("name", ["a%20b", "[x]", "a\\b", "a|b", "a^b", "tab\t"])
def test_roots_may_not_have_such_names(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Delta library"):
        check_location(f"/data/{name}")


def test_one_of_many_creators_wins(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        logs = list(pool.map(lambda _: _made(tmp_path / "table"), range(4)))
    assert len({log._read_tip for log in logs}) == 1


def test_an_existing_table_is_not_changed(tmp_path: Path) -> None:
    first = _made(tmp_path / "table")
    assert _made(tmp_path / "table")._read_tip == first._read_tip
    assert DeltaTable(str(tmp_path / "table")).schema().to_arrow() is not None


def test_a_table_whose_log_is_gone_is_not_created_again(tmp_path: Path) -> None:
    log = _made(tmp_path / "table")
    log.append(pa.table({"id": ["a"], "seq": [1]}, schema=SCHEMA), {}, log.new_token())
    for path in (tmp_path / "table" / "_delta_log").iterdir():
        path.unlink()
    with pytest.raises(CorruptMetadataError, match=f"{entry_key(0)} is missing"):
        _made(tmp_path / "table")
