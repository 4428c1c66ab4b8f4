"""Histories of topics whose root is on an S3 server."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pulsar_on_spark.datasource.history import history
from pulsar_on_spark.history_table import deletion, merging, retention, upkeep
from pulsar_on_spark.history_table.build import build
from pulsar_on_spark.history_table.merging import merge_small_files
from pulsar_on_spark.history_table.recorded import recorded_progress
from pulsar_on_spark.history_table.sql import view_statements
from pulsar_on_spark.history_table.table import HistoryTable
from pulsar_on_spark.metadata.log.tables import HISTORY
from pulsar_on_spark.metadata.records import HistoryTableRecord
from pulsar_on_spark.model.errors import HistoryTableError, InvalidArgumentError, PulsarpyError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.objects import remote
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.storage.root_place import objects_at, parse_place
from pulsar_on_spark.testing.s3_faults import Fault, S3Faults
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.usage import usage
from tests.kit import messages
from tests.kit.s3_server import S3Server, write_profile

pytestmark = pytest.mark.long

T = TopicName.parse("t")
BY_CHANCE = 0.2
SHORT_S = 0.2


@pytest.fixture
def root(bucket: str) -> Root:
    made = Root.create(f"{bucket}/root")
    made.create_topic("t")
    return made


@pytest.fixture
def by_delta_rs(s3_server: S3Server) -> Callable[[Root], DeltaTable]:
    """Opens the table of the only history, as another program does."""

    def opened(root: Root) -> DeltaTable:
        (record,) = root.store.view().all(HistoryTableRecord)
        return DeltaTable(str(root.place / record.table), storage_options={**s3_server.options(), "allow_http": "true"})

    return opened


def values(table: DeltaTable) -> list[bytes]:
    found: list[bytes] = table.to_pyarrow_table().column("value").to_pylist()
    return sorted(found)


def tables(root: Root) -> list[str]:
    return [listed.key for listed in objects_at(root.place).list_after(HISTORY)]


def test_a_history_is_built_merged_and_trimmed(
    root: Root, by_delta_rs: Callable[[Root], DeltaTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "WORTH_FILES", 2)
    monkeypatch.setattr(retention, "ABANDONED_S", -1)
    monkeypatch.setattr(retention, "KEEP_REMOVED_S", -1)
    set_namespace_policies(root, "public/default", {"history": {"enabled": True}})
    written = [b"%d" % number for number in range(3)]
    for value in written:
        messages.write(root, "t", [value])
        assert upkeep.keep_up(root) == []
    table = by_delta_rs(root)
    assert values(table) == written
    assert len(table.file_uris()) == 1
    assert upkeep.keep_up(root) == []
    assert len([key for key in tables(root) if key.endswith(".parquet") and "_delta_log" not in key]) == 1
    assert str(root.place).replace("s3:", "s3a:") in view_statements(root, "public/default").statements[1]
    set_namespace_policies(root, "public/default", {"history": {"enabled": True, "retentionSizeInMB": 0}})
    assert upkeep.keep_up(root) == []
    assert values(by_delta_rs(root)) == []
    root.delete_history("t")
    assert tables(root) == []
    messages.write(root, "t", [b"again"])
    set_namespace_policies(root, "public/default", {"history": {"enabled": True}})
    assert upkeep.keep_up(root) == []
    assert values(by_delta_rs(root)) == [*written, b"again"]


def test_tables_on_a_storage_path(root: Root, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="can hold journals only"):
        storage_paths.add(root, tmp_path / "lake", role="history")
    added = storage_paths.add(root, f"{bucket}/lake", role="history")
    lake = objects_at(root.current_storage_paths()[PathId(added.path_id)].place)
    for value in (b"a", b"b"):
        messages.write(root, "t", [value])
        build(root, T)
    assert tables(root) == []
    (_, statement) = view_statements(root, "public/default").statements
    assert f"{bucket}/lake/history/{topic_id(root)}".replace("s3:", "s3a:") in statement
    assert usage(root).topics[0].history_bytes == sum(listed.size for listed in lake.list_after(HISTORY))
    root.delete_topic("t")
    monkeypatch.setattr(deletion, "GRACE_S", -60.0)
    assert upkeep.keep_up(root) == []
    assert list(lake.list_after(HISTORY)) == []


def test_another_programs_optimize_is_heeded(root: Root, by_delta_rs: Callable[[Root], DeltaTable]) -> None:
    for value in (b"a", b"b"):
        messages.write(root, "t", [value])
        build(root, T)
    by_delta_rs(root).optimize.compact()
    messages.write(root, "t", [b"c"])
    build(root, T)
    assert values(by_delta_rs(root)) == [b"a", b"b", b"c"]


def test_tables_of_deleted_topics_are_deleted(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("t", "u", "v"):
        root.create_topic(name, if_exists="ignore")
        messages.write(root, name, [b"x"])
        build(root, TopicName.parse(name))
    kept = objects_at(root.place)
    kept.create(f"{HISTORY}/copy-of-mine/file", b"not ours")
    root.delete_topic("u")
    assert upkeep.keep_up(root) == []
    before = tables(root)
    monkeypatch.setattr(deletion, "GRACE_S", -60.0)
    assert upkeep.keep_up(root) == []
    after = tables(root)
    assert len({key.split("/")[1] for key in before}) == 4
    assert len({key.split("/")[1] for key in after}) == 3
    assert f"{HISTORY}/copy-of-mine/file" in after


def half_built(root: Root) -> None:
    messages.write(root, "t", [b"a", b"b"])
    build(root, T)
    messages.write(root, "t", [b"c"])


def test_spark_without_the_stores_file_system_is_told_so(root: Root, spark: SparkSession) -> None:
    half_built(root)
    with pytest.raises(HistoryTableError, match="give its session Hadoop's file system of this store"):
        history(spark, "t", str(root.place))


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is missing, which resolves Hadoop's S3A")
@pytest.mark.parametrize("is_on_path", [False, True])
def test_spark_reads_the_table_and_what_is_behind_it(
    root: Root, bucket: str, s3_server: S3Server, tmp_path: Path, is_on_path: bool
) -> None:
    if is_on_path:
        storage_paths.add(root, f"{bucket}/lake", role="history")
    half_built(root)
    arguments = [str(root.place), bucket, json.dumps(s3_server.options()), str(tmp_path / "jars")]
    command = [sys.executable, "-m", "tests.object_roots.history_app", *arguments]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True, timeout=600)
    assert json.loads(done.stdout.splitlines()[-1]) == ["a", "b", "c"]


@pytest.mark.parametrize("fault", list(Fault))
def test_builds_beside_faults_have_each_message_once(
    fault: Fault,
    s3_server: S3Server,
    faults: S3Faults,
    by_delta_rs: Callable[[Root], DeltaTable],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merging, "WORTH_FILES", 2)
    monkeypatch.setattr(remote, "PATIENCE_S", SHORT_S)
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "storage.toml"))
    bucket = s3_server.make_bucket()
    write_profile(tmp_path / "storage.toml", bucket, s3_server.options(), {"faulty": s3_server.options(faults.url)})
    clean = Root.create(f"{bucket}/root")
    clean.create_topic("t")
    seed = random.randrange(1 << 40)
    print(f"seed {seed}")
    chance = random.Random(seed)
    faulty = Root(parse_place(f"{bucket}/root", "faulty"))
    faults.decide = lambda _: fault if chance.random() < BY_CHANCE else None
    written = [b"%d" % number for number in range(6)]
    for value in written:
        messages.write(clean, "t", [value])
        try:
            build(faulty, T)
            (record,) = faulty.store.view().all(HistoryTableRecord)
            merge_small_files(HistoryTable(faulty.place, record.table))
        except PulsarpyError:
            continue
    faults.decide = lambda _: None
    build(clean, T)
    assert values(by_delta_rs(clean)) == written
    assert recorded_progress(clean.store.view(), topic_id(clean)).rows == len(written)


def topic_id(root: Root) -> str:
    return catalog.require_topic(root.store.view(), T).topic_id
