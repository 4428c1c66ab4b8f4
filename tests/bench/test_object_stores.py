"""The benchmarks on an S3 server, for as short as they go."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench import metadata, object_store
from tests.kit.s3_server import server_program


@pytest.mark.long
def test_commits_are_measured_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server_program()
    metadata.main(commits=3, delay_ms=1, work=tmp_path)
    said = capsys.readouterr().out
    for words in ("S3: own log", "S3: delta-rs", "own log / one request: ", "delta-rs / own log: "):
        assert words in said


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is missing, which resolves Hadoop's S3A")
def test_spark_is_measured_beside_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server_program()
    object_store.main(rows=4_000, rounds=1, delay_ms=[0, 1], work=tmp_path)
    said = capsys.readouterr().out
    for goal in (
        "write: pulsarpy / Parquet: ",
        "read: pulsarpy / Parquet: ",
        "read: pulsarpy, value / GET and decode: ",
    ):
        assert said.count(goal) == 2, "without a delay, and with one"
