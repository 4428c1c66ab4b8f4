"""Measures commits to a metadata table: this project's log and delta-rs's append, on a disk and on an S3 server.

Requests to the S3 server wait a while in a proxy, as on a network; each commit is alone.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import pyarrow as pa
import typer
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from rich.console import Console
from rich.table import Table

from pulsar_on_spark.metadata.log.creation import create_table
from pulsar_on_spark.metadata.log.local_log import LocalLog
from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.metadata.log.object_log import ObjectLog
from pulsar_on_spark.metadata.log.table_log import TableLog
from pulsar_on_spark.metadata.records import TenantRecord
from pulsar_on_spark.metadata.state import MAIN_SCHEMA, encode
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.objects.remote import RemoteObjects
from pulsar_on_spark.testing.s3_faults import Fault, Request, S3Faults
from tests.kit.s3_server import S3Server, build_server

_WARM_UP: Final = 5


def main(
    commits: Annotated[int, typer.Option(help="Number of commits of each kind.")] = 100,
    delay_ms: Annotated[float, typer.Option(help="Wait of each request to the S3 server.")] = 20.0,
    work: Annotated[Path | None, typer.Option(help="Folder of the tables on a disk.")] = None,
) -> None:
    """Measure and print."""
    build_server()
    table = Table("", "p50 ms", "p99 ms", "CPU ms", "requests", title=f"{commits} commits")
    for column in table.columns[1:]:
        column.justify = "right"
    with tempfile.TemporaryDirectory(prefix="bench-metadata-", dir=work) as folder:
        local = LocalLog(_made(Path(folder) / "own"))
        create_table(local, MAIN_SCHEMA)
        _measure(table, "disk: own log", commits, _own(local))
        _measure(table, "disk: delta-rs, not synced", commits, _delta(str(_made(Path(folder) / "delta")), {}))
        with S3Server(_made(Path(folder) / "s3")) as server, S3Faults(server.url, _waiting(delay_ms)) as proxy:
            options = dict(server.options(proxy.url))
            url = f"{server.make_bucket()}/table"
            objects = RemoteObjects(url, options)
            objects.create(IDENTITY_NAME, b"identity")
            _measure(table, "S3: one request", commits, lambda: objects.fetch(IDENTITY_NAME), proxy)
            store = ObjectLog(objects, url)
            create_table(store, MAIN_SCHEMA)
            _measure(table, "S3: own log", commits, _own(store), proxy)
            delta_options = {**options, "aws_allow_http": "true", "conditional_put": "etag"}
            _measure(table, "S3: delta-rs", commits, _delta(f"{url}-delta", delta_options), proxy)
    Console().print(table)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _waiting(delay_ms: float) -> Callable[[Request], Fault | None]:
    def wait(request: Request) -> Fault | None:
        time.sleep(delay_ms / 1000)
        return None

    return wait


def _measure(table: Table, name: str, count: int, act: Callable[[], object], proxy: S3Faults | None = None) -> None:
    for _ in range(_WARM_UP):
        act()
    taken_ms: list[float] = []
    requests, cpu_s = len(proxy.outcomes) if proxy else 0, time.process_time()
    for _ in range(count):
        began_s = time.perf_counter()
        act()
        taken_ms.append((time.perf_counter() - began_s) * 1000)
    cpu_ms = (time.process_time() - cpu_s) * 1000 / count
    figures = (statistics.median(taken_ms), statistics.quantiles(taken_ms, n=100)[98], cpu_ms)
    asked = f"{(len(proxy.outcomes) - requests) / count:.1f}" if proxy else ""
    table.add_row(name, *(f"{figure:.2f}" for figure in figures), asked)


def _rows(version: int, token: str) -> pa.Table:
    return encode([(TenantRecord(tenant="t"), False)], version, token, ["key"])


def _own(store: LogStore) -> Callable[[], None]:
    log = TableLog(store)
    log.refresh()

    def commit() -> None:
        token = log.new_token()
        log.append(_rows(log.version + 1, token), {"key": (log.key_version("key") or 0) + 1}, token)
        log.taken_in()

    return commit


def _delta(url: str, options: dict[str, str]) -> Callable[[], None]:
    table = DeltaTable.create(url, schema=MAIN_SCHEMA, storage_options=options)

    def commit() -> None:
        table.update_incremental()
        properties = CommitProperties(app_transactions=[Transaction("key", table.version() + 1)])
        write_deltalake(
            table, _rows(table.version() + 1, uuid.uuid4().hex), mode="append", commit_properties=properties
        )

    return commit


if __name__ == "__main__":
    typer.run(main)
