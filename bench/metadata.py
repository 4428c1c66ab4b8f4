"""Commits to a metadata table: this project's log and delta-rs's append, on a disk and on an S3 server.

Requests to the S3 server wait in a proxy, as on a network. Only one commit runs at a time, and the sides take turns, so
that the machine's other work is distributed evenly over them. One side only sends the requests of a commit, one after
another as their rules require: no commit is faster.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import pyarrow as pa
import typer
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from rich.console import Console
from rich.table import Table

from pulsar_on_spark.metadata.log.creation import create_table
from pulsar_on_spark.metadata.log.entry import LOG
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
_ONE_REQUEST: Final = "S3: one request"
_ITS_REQUESTS: Final = "S3: own log's requests alone"
_OWN_LOG: Final = "S3: own log"
_DELTA: Final = "S3: delta-rs"
_FILE_BYTES: Final = 3_000
_ENTRY_BYTES: Final = 700
"""Sizes of the two objects of a commit."""


def main(
    commits: Annotated[int, typer.Option(help="Number of commits of each kind.")] = 100,
    delay_ms: Annotated[float, typer.Option(help="Wait of each request to the S3 server.")] = 20.0,
    work: Annotated[Path | None, typer.Option(help="Folder of the tables on a disk.")] = None,
) -> None:
    """Measure all sides, and print tables."""
    build_server()
    with tempfile.TemporaryDirectory(prefix="bench-metadata-", dir=work) as folder:
        local = LocalLog(_made(Path(folder) / "own"))
        create_table(local, MAIN_SCHEMA)
        sides = [
            Side("disk: own log", _own(local)),
            Side("disk: delta-rs, not synced", _delta(str(_made(Path(folder) / "delta")), {})),
        ]
        with S3Server(_made(Path(folder) / "s3")) as server, S3Faults(server.url, waiting(delay_ms)) as proxy:
            options = dict(server.options(proxy.url))
            url = f"{server.make_bucket()}/table"
            objects = RemoteObjects(url, options)
            objects.create(IDENTITY_NAME, b"identity")
            store = ObjectLog(objects, url)
            create_table(store, MAIN_SCHEMA)
            delta_options = {**options, "aws_allow_http": "true", "conditional_put": "etag"}
            sides += [
                Side(_ONE_REQUEST, lambda: objects.fetch(IDENTITY_NAME), proxy),
                Side(_ITS_REQUESTS, _requests(objects), proxy),
                Side(_OWN_LOG, _own(store), proxy),
                Side(_DELTA, _delta(f"{url}-delta", delta_options), proxy),
            ]
            for number in range(-_WARM_UP, commits):
                for side in sides:
                    side.run(is_counted=number >= 0)
    _print(sides, f"{commits} commits of each, requests wait {delay_ms:g} ms, load average {os.getloadavg()[0]:.0f}")


@dataclass(slots=True)
class Side:
    """One way to commit, and its measurements.

    Attributes:
        name: The name in the table.
        act: Makes one commit.
        proxy: The proxy in front of the S3 server, which counts requests; None on a disk.
        taken_ms: Duration of each commit in milliseconds.
        cpu_ms: CPU time of this process for each commit, in milliseconds.
        requests: Number of requests of each commit.
    """

    name: str
    act: Callable[[], object]
    proxy: S3Faults | None = None
    taken_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)

    def run(self, *, is_counted: bool) -> None:
        """Commit once, and store the measurements if `is_counted`."""
        sent, cpu_s, began_s = self._sent(), time.process_time(), time.perf_counter()
        self.act()
        if is_counted:
            self.taken_ms.append((time.perf_counter() - began_s) * 1000)
            self.cpu_ms.append((time.process_time() - cpu_s) * 1000)
            self.requests.append(self._sent() - sent)

    @property
    def p50_ms(self) -> float:
        """The median duration of a commit in milliseconds."""
        return statistics.median(self.taken_ms)

    def _sent(self) -> int:
        return 0 if self.proxy is None else len(self.proxy.outcomes)


def _print(sides: Sequence[Side], title: str) -> None:
    table = Table("", "p50 ms", "p99 ms", "CPU ms", "requests", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for side in sides:
        figures = (side.p50_ms, statistics.quantiles(side.taken_ms, n=100)[98], statistics.mean(side.cpu_ms))
        asked = f"{statistics.mean(side.requests):.1f}" if side.proxy else ""
        table.add_row(side.name, *(f"{figure:.2f}" for figure in figures), asked)
    p50_ms = {side.name: side.p50_ms for side in sides}
    console = Console()
    console.print(table)
    console.print(f"own log / one request: {p50_ms[_OWN_LOG] / p50_ms[_ONE_REQUEST]:.2f}, at most 3.5")
    console.print(f"own log's requests alone / one request: {p50_ms[_ITS_REQUESTS] / p50_ms[_ONE_REQUEST]:.2f}")
    console.print(f"delta-rs / own log: {p50_ms[_DELTA] / p50_ms[_OWN_LOG]:.2f}, at least 2.5")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def waiting(delay_ms: float) -> Callable[[Request], Fault | None]:
    """Return a function for a proxy that lets each request wait, and returns None, which means no fault."""

    def wait(request: Request) -> Fault | None:
        time.sleep(delay_ms / 1000)
        return None

    return wait


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


def _requests(objects: RemoteObjects) -> Callable[[], None]:
    """Create two objects of a commit's sizes, and list what is behind the second one."""
    numbers, file, entry = itertools.count(), os.urandom(_FILE_BYTES), os.urandom(_ENTRY_BYTES)

    def send() -> None:
        key = f"alone/{LOG}/{next(numbers):020d}.json"
        objects.create(f"alone/{uuid.uuid4().hex}.parquet", file)
        objects.create(key, entry)
        assert not list(objects.list_after(f"alone/{LOG}", key)), "no other writer has an entry there"

    return send


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
