"""The sink's look at checkpoints: which folder is the query's, what of its offsets counts, what may be closed."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pulsar_on_spark.datasource.checkpoint import checkpoints_of, sync_offsets
from pulsar_on_spark.model.errors import StorageError

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
AS_A_USER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Root may open what it likes; a process without these capabilities may not."""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The checkpoint of query q, in a folder of checkpoints."""
    folder = tmp_path / "checkpoints" / "named"
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"q"}')
    return folder


def planned(checkpoint: Path, *lines: str) -> str | None:
    """The digest of batch 0, planned with these lines."""
    (checkpoint / "offsets" / "0").write_text("\n".join(lines))
    return sync_offsets([checkpoint], 0)


def test_each_source_counts_and_the_settings_do_not(checkpoint: Path) -> None:
    given = [
        ("v1", METADATA, '{"a":1}'),
        ("v1", METADATA, '{"a":2}'),
        ("v1", METADATA, '{"a":1}', "-"),
        ("v1", METADATA, '{"a":1}', '{"a":1}'),
        ("v2", METADATA, '0:{"a":1}', "1:-"),
        ("v2", METADATA, "1:-", '0:{"a":2}'),
    ]
    found = [planned(checkpoint, *lines) for lines in given]
    assert None not in found
    assert len(set(found)) == len(given)
    edited = [planned(checkpoint, lines[0], METADATA.replace("1", "2"), *lines[2:]) for lines in given]
    assert edited == found
    assert planned(checkpoint, "v1", METADATA) is None


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_editor_may_end_the_last_line(checkpoint: Path, end: str) -> None:
    """Spark writes no end of it, and reads the same offsets where there is one."""
    lines = ("v1", METADATA, '{"a":1}')
    found = planned(checkpoint, *lines)
    (checkpoint / "offsets" / "0").write_bytes("".join(line + end for line in lines).encode())
    assert sync_offsets([checkpoint], 0) == found


@pytest.mark.parametrize(("version", "line", "source"), [("v1", "", "1"), ("v2", "day:", "day")])
def test_the_files_of_a_file_source_count(checkpoint: Path, version: str, line: str, source: str) -> None:
    """A file source's offset is a number in a log of its own."""
    log = checkpoint / "sources" / source
    log.mkdir(parents=True)

    def digest(name: str, *files: tuple[str, int]) -> str | None:
        for former in log.iterdir():
            former.unlink()
        entries = [f'{{"path":"file:///{path}","timestamp":1,"batchId":{number}}}' for path, number in files]
        (log / name).write_text("\n".join(["v1", *entries]))
        return planned(checkpoint, version, METADATA, "-", line + '{"logOffset":9}')

    first = digest("9", ("a", 9), ("b", 9))
    assert first != digest("9", ("a", 9), ("c", 9))
    assert first != digest("9", ("a", 9))
    assert first == digest("9.compact", ("x", 8), ("a", 9), ("b", 9)) == digest("9.compact", ("a", 9), ("b", 9))
    assert first == planned(checkpoint, version, METADATA, "-", line + '{"logOffset":9}')


def test_a_checkpoint_is_known_by_its_query(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    (checkpoint.parent / "a file").touch()
    (checkpoint.parent / "a root" / "metadata").mkdir(parents=True)
    for given in (str(checkpoint), checkpoint.as_uri()):
        assert checkpoints_of("q", given, None) == [checkpoint]
        assert checkpoints_of("q", given, "hdfs://host/checkpoints") == [checkpoint]
    assert checkpoints_of("q", None, str(checkpoint.parent)) == [checkpoint]
    for elsewhere in ("hdfs://host/checkpoints", str(checkpoint / "none"), str(checkpoint.parent / "a file")):
        assert checkpoints_of("q", elsewhere, None) == []
        assert checkpoints_of("q", None, elsewhere) == []
    assert checkpoints_of("q", None, None) == []
    assert caplog.messages == []


def test_copies_beside_a_checkpoint_count_if_they_differ(checkpoint: Path) -> None:
    """Under the default folder, where nothing tells which of them the query uses."""
    digest = planned(checkpoint, "v1", METADATA, '{"a":1}')
    copy = shutil.copytree(checkpoint, checkpoint.with_name("copy"))
    for content in ("same", "absent", "other"):
        if content == "absent":
            (copy / "offsets" / "0").unlink()
        if content == "other":
            (copy / "offsets" / "0").write_text(f'v1\n{METADATA}\n{{"a":2}}')
        found = checkpoints_of("q", None, str(checkpoint.parent))
        assert sorted(found) == [copy, checkpoint]
        if content == "other":
            with pytest.raises(StorageError, match=rf"different offsets of batch 0: move .* out of {copy.parent}"):
                sync_offsets(found, 0)
        else:
            assert sync_offsets(found, 0) == digest


@pytest.mark.parametrize("content", [None, '{"id":"another"}', "no JSON"])
def test_a_folder_that_is_no_checkpoint_of_the_query_is_left_alone(
    checkpoint: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint is on another file system, under a path that exists here by chance."""
    (checkpoint / "offsets").rmdir()
    (checkpoint / "metadata").unlink()
    if content is not None:
        (checkpoint / "metadata").write_text(content)
    assert checkpoints_of("q", str(checkpoint), None) == []
    assert checkpoints_of("q", None, str(checkpoint.parent)) == []
    assert len(caplog.messages) == 2
    assert all(line.startswith("No checkpoint of query q is readable in") for line in caplog.messages)


def test_a_batch_without_offsets_is_logged_and_does_not_fail(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (checkpoint / "offsets").rmdir()
    assert sync_offsets([checkpoint], 0) is None
    assert len(caplog.messages) == 1
    assert f"offsets of batch 0 cannot be made durable in checkpoint {checkpoint}" in caplog.messages[0]


LOOK = """
import logging, sys
from pulsar_on_spark.datasource.checkpoint import checkpoints_of, sync_offsets
logging.basicConfig(level=logging.INFO, format="%(message)s")
found = checkpoints_of("q", sys.argv[1], None)
print(sync_offsets(found, 0))
"""


def look_as_a_user(checkpoint: Path) -> tuple[str, list[str]]:
    """The batch's digest and the log's lines, where permissions count."""
    command = [*AS_A_USER, sys.executable, "-c", LOOK, str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr.splitlines()


@pytest.mark.parametrize("closed", ["..", "offsets/0", "offsets", "metadata", "."])
def test_a_checkpoint_without_permission_is_logged_and_does_not_fail(checkpoint: Path, closed: str) -> None:
    digest = str(planned(checkpoint, "v1", METADATA, '{"a":1}'))
    assert look_as_a_user(checkpoint) == (digest, [])
    path = checkpoint / closed
    mode = path.stat().st_mode
    path.chmod(0o311 if closed == ".." else 0)
    try:
        found, lines = look_as_a_user(checkpoint)
    finally:
        path.chmod(mode)
    assert found == (digest if closed == ".." else "None")
    # A folder that cannot be entered looks like one of another host.
    assert len(lines) == 1, lines
    assert str(checkpoint) in lines[0]


@pytest.mark.parametrize("name", ["metadata", "0"])
def test_a_disk_that_fails_is_no_other_host(checkpoint: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(checkpoint, "v1", METADATA, '{"a":1}')
    real = io.open

    def failing(path: Path, *args: Any, **kwargs: Any) -> object:
        if Path(path).name == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(io, "open", failing)
    with pytest.raises(StorageError, match=rf"{checkpoint}.*Input/output error.*check its disk"):
        commit_look(checkpoint)


def commit_look(checkpoint: Path) -> None:
    """All that a commit of batch 0 does with the checkpoint."""
    assert checkpoints_of("q", str(checkpoint), None) == [checkpoint]
    sync_offsets([checkpoint], 0)
