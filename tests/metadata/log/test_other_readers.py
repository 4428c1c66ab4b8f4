"""Other programs read the tables as this project does: delta-rs, Spark with Delta, and DuckDB with its extension.

On an object store, Spark was not tried: it needs Hadoop's S3 client there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import duckdb
import duckdb_extension_delta
import duckdb_extension_httpfs
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.log import cleaning, folding
from pulsar_on_spark.metadata.log.table_log import TableLog
from pulsar_on_spark.metadata.log.tables import read_only_log
from pulsar_on_spark.metadata.records import RootRecord, TenantRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.storage.root_place import RootPlace, objects_at, parse_place
from tests.kit.s3_server import S3Server, write_profile

FIRST = RootRecord(format_version=2, cluster_id="c" * 32, quorum="3/3/2")
TABLES = ("main", "cursors")
COMMITS = 12
Reader: TypeAlias = Callable[[str], pa.Table]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fold, and clean up all that is not needed, as soon as there is anything."""
    for module, name in ((folding, "LAG"), (folding, "WORTH_FILES"), (cleaning, "KEEP_ENTRIES")):
        monkeypatch.setattr(module, name, 4)
    for name in ("KEEP_S", "RETAIN_S"):
        monkeypatch.setattr(cleaning, name, -1.0)


def commit(store: MetadataStore, note: str) -> None:
    """Put, replace and delete records, and move cursors."""
    for number in range(COMMITS):
        record = TenantRecord(tenant=f"t{number % 7}", allowed_clusters=(f"{note} \u00e9 {number}",))
        change = Change(puts=[record], keys={"key": None, f"tenant/{number % 7}": None})
        store.commit(lambda view, change=change: change)
        if number % 5 == 4:
            store.commit(lambda view, record=record: Change(deletes=[record], keys={"key": None}))
        holes = b"\0\xff" if number % 2 else None
        store.append_cursors([CursorRow("t", "s", number % 3, 1, number, 1, number, holes)])


def each_stage(place: RootPlace, check: Callable[[str], None]) -> None:
    """Take a root through all that a log goes through."""
    store = MetadataStore.create(place, [FIRST])
    check("created")
    commit(store, "first")
    check("after commits")
    assert store.fold_and_checkpoint()
    check("after a fold and a checkpoint")
    commit(store, "second")
    check("after commits behind a checkpoint")
    store.fold_and_checkpoint()
    commit(store, "third")
    store.fold_and_checkpoint()
    assert TableLog(read_only_log(place, "main")).history().base.version > 0, "the beginning of the log was cleaned up"
    check("after a clean-up of the log")
    assert store.vacuum() > 0
    check("after a vacuum")
    commit(store, "fourth")
    check("after commits behind all that")


def own(place: RootPlace, table: str) -> list[str]:
    news = TableLog(read_only_log(place, table)).refresh()
    return as_texts(pa.concat_tables(news.tables)) if news.tables else []


def as_texts(rows: pa.Table) -> list[str]:
    """Return the rows in an order of their own, times in one zone."""
    at = rows.schema.get_field_index("committed_at")
    rows = rows.set_column(at, "committed_at", rows.column(at).cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
    return sorted(str(sorted(row.items())) for row in rows.to_pylist())


def by_delta_rs(table: str) -> pa.Table:
    return DeltaTable(table).to_pyarrow_table()


def by_duckdb(table: str, secret: str = "", where: str = "true") -> pa.Table:
    """Read with DuckDB's extensions, which come as packages; DuckDB checks their signatures."""
    with duckdb.connect() as connection:
        for module in (duckdb_extension_delta, duckdb_extension_httpfs):
            folder = Path(module.__file__).parent / "extensions" / f"v{duckdb.__version__}"
            (extension,) = folder.iterdir()
            connection.load_extension(str(extension))
        connection.sql("SET TimeZone = 'UTC'")
        if secret:
            connection.sql(secret)
        return connection.sql(f"SELECT * FROM delta_scan(?) WHERE {where}", params=[table]).to_arrow_table()


@pytest.mark.parametrize("read", [by_delta_rs, by_duckdb])
@pytest.mark.usefixtures("often")
def test_libraries_read_the_same_rows(memory_path: Path, read: Reader) -> None:
    place = memory_path / "root"

    def check(stage: str) -> None:
        for table in TABLES:
            assert as_texts(read(f"{place}/metadata/{table}")) == own(place, table), f"{table} {stage}"

    each_stage(place, check)


@pytest.mark.long
@pytest.mark.usefixtures("often")
def test_spark_reads_the_same_rows(delta_spark: SparkSession, memory_path: Path) -> None:
    place = memory_path / "root"

    def check(stage: str) -> None:
        for table in TABLES:
            frame = delta_spark.read.format("delta").load(f"{place}/metadata/{table}")
            assert as_texts(frame.toArrow()) == own(place, table), f"{table} {stage}"

    each_stage(place, check)
    history = delta_spark.sql(f"DESCRIBE HISTORY delta.`{place}/metadata/main`").collect()
    assert history[0].version == TableLog(read_only_log(place, "main")).history().newest


@pytest.mark.long
def test_older_versions_are_the_same(delta_spark: SparkSession, memory_path: Path) -> None:
    """Each program returns to each version that the log keeps."""
    place = memory_path / "root"
    commit(MetadataStore.create(place, [FIRST]), "first")
    table, log = str(place / "metadata" / "main"), TableLog(read_only_log(place, "main"))
    history = log.history()
    for version in range(1, history.newest + 1, 7):
        expected = as_texts(pa.concat_tables(log.read(history.snapshot(version).files.values())))
        frame = delta_spark.read.format("delta").option("versionAsOf", version).load(table)
        assert as_texts(frame.toArrow()) == expected
        assert as_texts(DeltaTable(table, version=version).to_pyarrow_table()) == expected


@pytest.mark.long
@pytest.mark.usefixtures("often")
def test_libraries_read_the_same_rows_of_an_object_root(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3_server.make_bucket()
    write_profile(tmp_path / "storage.toml", bucket, s3_server.options())
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "storage.toml"))
    place = parse_place(f"{bucket}/root")
    objects_at(place).create(IDENTITY_NAME, b"identity")
    options = {**s3_server.options(), "aws_allow_http": "true"}
    key, password = options["aws_access_key_id"], options["aws_secret_access_key"]
    secret = (
        f"CREATE SECRET (TYPE s3, KEY_ID '{key}', SECRET '{password}', REGION '{options['aws_region']}', "
        f"ENDPOINT '{options['aws_endpoint'].removeprefix('http://')}', URL_STYLE 'path', USE_SSL false)"
    )

    def check(stage: str) -> None:
        for table in TABLES:
            url, expected = f"{place}/metadata/{table}", own(place, table)
            delta = DeltaTable(url, storage_options=options)
            assert as_texts(delta.to_pyarrow_table()) == expected, f"{table} {stage}"
            assert as_texts(by_duckdb(url, secret)) == expected, f"{table} {stage}"

    each_stage(place, check)
