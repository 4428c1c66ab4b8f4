from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsar_on_spark.metadata.log.data_files import DataFiles

READ = """
import os, sys
from pathlib import Path
from pulsar_on_spark.metadata.log.data_files import DataFiles
before = len(os.listdir("/proc/self/task"))
assert DataFiles(Path(sys.argv[1])).read("file.parquet").num_rows == 3
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_reading_leaves_no_thread(tmp_path: Path) -> None:
    """A thread that still held a Python object at the process's end would abort it."""
    pq.write_table(pa.table({"seq": [1, 2, 3]}), tmp_path / "file.parquet")
    done = subprocess.run([sys.executable, "-c", READ, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_unreadable_data_files_are_errors(tmp_path: Path) -> None:
    files = DataFiles(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.read("vacuumed.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises((pa.ArrowException, OSError)):
        files.read("broken.parquet")
