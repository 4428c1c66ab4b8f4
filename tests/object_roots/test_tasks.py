"""The requests of a task to the store: 200 executors must not open the metadata 200 times."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StructField, StructType

from pulsar_on_spark.datasource.batch_reader import PulsarBatchReader
from pulsar_on_spark.datasource.source import PulsarDataSource
from pulsar_on_spark.datasource.writer import PulsarBatchWriter
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.testing.s3_faults import S3Faults
from tests.kit import messages
from tests.kit.s3_server import S3Server, write_profile

pytestmark = pytest.mark.long

TASK = """
import sys
from pyspark import cloudpickle

print(cloudpickle.loads(sys.stdin.buffer.read())())
"""
"""An executor's process, which knows nothing but its task and its profile."""


@pytest.fixture
def root(bucket: str, s3_server: S3Server, faults: S3Faults, tmp_path: Path) -> Root:
    """A root behind the proxy."""
    write_profile(tmp_path / "storage.toml", bucket, s3_server.options(faults.url))
    root = Root.create(f"{bucket}/root")
    root.create_topic("t")
    messages.write(root, "t", [b"%d" % number for number in range(100)])
    return root


def source(root: Root) -> PulsarDataSource:
    return PulsarDataSource({"path": str(root.place), "topic": "t"})


def requests_of(task: object, faults: S3Faults) -> tuple[str, list[str]]:
    """Run a task in a process; returns what it said, and the objects that it asked for, below the root."""
    before = len(faults.outcomes)
    command = [sys.executable, "-c", TASK]
    done = subprocess.run(command, input=cloudpickle.dumps(task), capture_output=True, timeout=60, check=True)
    paths = [outcome.request.path for outcome in faults.outcomes[before:]]
    return done.stdout.decode().strip(), [path.partition("/root/")[2] for path in paths]


def test_a_task_that_reads_asks_for_its_segments_only(root: Root, faults: S3Faults) -> None:
    reader = source(root).reader(source(root).schema())
    assert isinstance(reader, PulsarBatchReader)
    (partition,) = reader.partitions()

    def task() -> int:
        return sum(batch.num_rows for batch in reader.read(partition))

    said, asked = requests_of(task, faults)
    assert said == "100"
    assert asked[0] == f"storage/0/{IDENTITY_NAME}"
    assert asked[1:]
    assert all(path.startswith("storage/0/segments/") for path in asked[1:])


def test_a_task_that_writes_puts_its_segments_only(root: Root, faults: S3Faults) -> None:
    writer = source(root).writer(StructType([StructField("value", BinaryType())]), overwrite=False)
    assert isinstance(writer, PulsarBatchWriter)

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"v"] * 100, pa.binary())})

    def task() -> int:
        return len(writer.write(rows()).output.files)

    said, asked = requests_of(task, faults)
    assert said == "1"
    identity = f"storage/0/{IDENTITY_NAME}"
    assert identity in asked
    assert all(path == identity or path.startswith("storage/0/segments/") for path in asked)
