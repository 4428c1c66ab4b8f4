"""The journal on an object store, in process: the time from an entry to its receipt, beside single requests.

    python -m bench.object_journal [--seconds 10]

One path on an S3 server (versitygw on loopback). Requests wait in a proxy; the journal gets 500 entries of 1 KiB a
second. The throughput is measured without the proxy, beside uploads of the same size and number in flight.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bench.journal import CLUSTER, MESSAGE_BYTES, Client, Load
from bench.metadata import waiting
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.journal import Journal
from pulsar_on_spark.ledger.journal.object_protocol import DEFAULT_COMMITS, CommitPolicy
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.metadata.records import RootRecord
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.ids import IncarnationId, PathId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.object_path import ObjectPath
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.storage.objects.remote import RemoteObjects
from pulsar_on_spark.storage.root_place import parse_place
from pulsar_on_spark.testing.s3_faults import S3Faults
from tests.kit.s3_server import S3Server, build_server, write_profile

_DELAYS_MS: Final = (1.0, 5.0, 20.0)
_INTERVALS_MS: Final = (5.0, 25.0, 100.0)
_OFFERED: Final = Load("500 entries a second", "1/1/1", window=100_000, rate=500)
_ALL: Final = Load("as much as it takes", "1/1/1", messages=64, window=2_000)
_PUTS: Final = 200


def main(seconds: Annotated[float, typer.Option(help="Seconds of each load.")] = 10.0) -> None:
    """Measure latency and throughput, and print two tables."""
    build_server()
    waits = Table("wait of a request", "one PUT, p50", "interval", "receipts, p50", "p99", "goal for p50", "objects/s")
    with tempfile.TemporaryDirectory(prefix="bench-journal-") as folder, ExitStack() as at_end:
        (Path(folder) / "s3").mkdir()
        server = at_end.enter_context(S3Server(Path(folder) / "s3"))
        bucket = server.make_bucket()
        profile = Path(folder) / "storage.toml"
        os.environ[FILE_VARIABLE] = str(profile)
        for delay_ms in _DELAYS_MS:
            with S3Faults(server.url, waiting(delay_ms)) as proxy:
                write_profile(profile, bucket, server.options(proxy.url))
                put_ms = _put_ms(RemoteObjects(f"{bucket}/raw", dict(server.options(proxy.url))))
                for interval_ms in _INTERVALS_MS:
                    sent = len(proxy.outcomes)
                    client, took_s = _run(_OFFERED, bucket, CommitPolicy(interval_s=interval_ms / 1000), seconds)
                    p50, p99 = np.percentile(np.concatenate(client.latencies) / 1e6, [50, 99])
                    waits.add_row(
                        *(f"{delay_ms:g} ms", f"{put_ms:.1f} ms", f"{interval_ms:g} ms"),
                        *(f"{p50:.1f} ms", f"{p99:.1f} ms", f"{interval_ms / 2 + 1.5 * put_ms:.1f} ms"),
                        f"{(len(proxy.outcomes) - sent) / took_s:.0f}",
                    )
        write_profile(profile, bucket, server.options())
        raw = _raw_mb_per_s(RemoteObjects(f"{bucket}/raw", dict(server.options())), seconds)
        client, took_s = _run(_ALL, bucket, DEFAULT_COMMITS, seconds)
        journal = sum(map(len, client.latencies)) * _ALL.messages * MESSAGE_BYTES / took_s / 1e6
    console = Console()
    console.print(waits)
    console.print(
        f"Throughput: journal {journal:.0f} MB/s, PUTs of {DEFAULT_COMMITS.max_bytes >> 20} MiB {raw:.0f} MB/s, ratio "
        f"{journal / raw:.2f} (goal 0.8); load average {os.getloadavg()[0]:.1f}"
    )


def _put_ms(objects: RemoteObjects) -> float:
    """Return the median time in milliseconds of PUTs of a message's size, one after another."""
    content, times_ms = os.urandom(MESSAGE_BYTES), []
    for _ in range(_PUTS):
        began_s = time.perf_counter()
        objects.create(secrets.token_hex(8), content)
        times_ms.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(times_ms)


def _raw_mb_per_s(objects: RemoteObjects, seconds: float) -> float:
    """Return the MB a second of PUTs of a journal's largest objects, with a journal's number of PUTs in flight."""
    content = os.urandom(DEFAULT_COMMITS.max_bytes)
    end_s = time.perf_counter() + seconds

    def put_all(_: int) -> int:
        count = 0
        while time.perf_counter() < end_s:
            objects.create(secrets.token_hex(8), content)
            count += 1
        return count

    began_s = time.perf_counter()
    with ThreadPoolExecutor(DEFAULT_COMMITS.in_flight) as threads:
        count = sum(threads.map(put_all, range(DEFAULT_COMMITS.in_flight)))
    return count * len(content) / (time.perf_counter() - began_s) / 1e6


def _run(load: Load, bucket: str, policy: CommitPolicy, seconds: float) -> tuple[Client, float]:
    """Run the load on a new journal, and return the client and the duration in seconds."""

    async def work(store: MetadataStore, path: ObjectPath) -> tuple[Client, float]:
        client = Client(load)
        journal = Journal(
            LogRegister(store, IncarnationId("bench")),
            [path],
            Quorum.parse(load.quorum),
            client,
            on_ended=client.on_ended,
            mark_failed=lambda failures: None,
            limits=JournalLimits(object_commits=policy),
        )
        await journal.open()
        await asyncio.sleep(0.5)  # the next file is prepared
        took_s = await client.run(journal, seconds)
        await journal.close()
        return client, took_s

    with tempfile.TemporaryDirectory(prefix="bench-journal-root-", dir="/dev/shm") as folder:
        root = RootRecord(format_version=1, cluster_id=CLUSTER, quorum="1/1/1")
        store = MetadataStore.create(Path(folder) / "root", [root])
        path = ObjectPath(PathId(0), parse_place(f"{bucket}/{secrets.token_hex(4)}"), CLUSTER)
        path.create()
        return asyncio.run(work(store, path))


if __name__ == "__main__":
    typer.run(main)
