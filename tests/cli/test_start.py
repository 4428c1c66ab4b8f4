"""A command loads only the modules that it needs, so that it starts at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_on_spark.root import Root

HEAVY = {"deltalake", "fastapi", "fastavro", "httpx", "numpy", "pandas", "pulsar", "pyarrow", "pyspark", "uvloop"}
PROGRAM = """
import sys
from pulsar_on_spark import cli
sys.argv = ["pulsarpy", *sys.argv[1:]]
try:
    cli.main()
finally:
    sys.stderr.write(" ".join(["\\nloaded", *sys.modules]))
"""


def loaded(*arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    return HEAVY & set(done.stderr.rpartition("\nloaded ")[2].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["topics", "--help"],
        ["consume", "--help"],
        ["standalone", "--help"],
        ["storage", "--help"],
        ["topics", "nonsense"],
    ],
)
def test_help_loads_no_heavy_module(arguments: list[str]) -> None:
    assert loaded(*arguments) == set()


def test_a_command_through_a_broker_loads_no_storage() -> None:
    assert loaded("topics", "list", "--url", "http://localhost:1") == {"httpx"}
    assert loaded("seek", "t", "s", "1h", "--url", "http://localhost:1") == {"httpx"}


def test_a_command_on_a_root_loads_neither_spark_nor_a_client(tmp_path: Path) -> None:
    root = str(Root.create(tmp_path / "root").path)
    assert loaded("topics", "list", root) == {"numpy", "pyarrow"}
    assert loaded("status", root) == {"numpy", "pyarrow"}
