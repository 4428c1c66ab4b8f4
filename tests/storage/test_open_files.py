"""The processes that have files open are found, for deleted files too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pulsar_on_spark.storage.open_files import processes_with_open_files

HOLD = "import sys; files = [open(name) for name in sys.argv[1:]]; print('open', flush=True); sys.stdin.read()"


def test_open_and_deleted_files_are_found(tmp_path: Path) -> None:
    directory, beside = tmp_path / "disk", tmp_path / "disk-2"
    for each in (directory / "below", beside):
        each.mkdir(parents=True)
        (each / "file").touch()
    link = tmp_path / "link"
    link.symlink_to(directory)
    held = directory / "below" / "file"
    assert processes_with_open_files(link) == {}
    command = [sys.executable, "-c", HOLD, str(held), str(beside / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        held.unlink()
        assert processes_with_open_files(link) == {other.pid: 1}
        other.stdin.close()
    held.touch()
    with held.open():
        assert processes_with_open_files(directory) == {os.getpid(): 1}
