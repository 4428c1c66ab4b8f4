"""The output of a task: routed, cut into entries, in few files, within memory, on the storage paths that are well."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.model.errors import InvalidArgumentError, NotEnoughCopiesError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.storage_path import PathFailure
from pulsar_on_spark.topic.data_path import task_writer
from pulsar_on_spark.topic.data_path.attach import TaskOutput, attach
from pulsar_on_spark.topic.data_path.routing import HashingScheme
from pulsar_on_spark.topic.data_path.task_writer import TaskWriter
from pulsar_on_spark.topic.maintenance import maintain
from tests.kit import messages


def writer_for(root: Root, paths: list[LocalPath] | None = None) -> TaskWriter:
    chosen = root.writable_paths(root.store.view()) if paths is None else paths
    return TaskWriter(messages.new_write_id(), 0, chosen, root.quorum, HashingScheme.JAVA_STRING_HASH)


def numbered(count: int, prefix: str = "v") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def test_keys_stay_in_one_partition_and_in_order(root: Root) -> None:
    root.create_topic("t", 4)
    keys = [f"k{number % 7}".encode() for number in range(500)]
    messages.write(root, "t", numbered(500), keys)

    found = messages.read(root, "t")
    partitions = defaultdict(set)
    by_key = defaultdict(list)
    for message in found:
        key = dict(message.columns)["key"]
        partitions[key].add(message.id.partition)
        by_key[key].append(message.value)
    assert all(len(used) == 1 for used in partitions.values())
    assert len({next(iter(used)) for used in partitions.values()}) > 1
    assert all(by_key[key] == [v for k, v in zip(keys, numbered(500), strict=True) if k == key] for key in by_key)
    assert sorted(m.value or b"" for m in found) == sorted(numbered(500))


def test_rows_without_keys_spread_evenly(root: Root) -> None:
    root.create_topic("t", 4)
    messages.write(root, "t", numbered(400))
    assert set(Counter(message.id.partition for message in messages.read(root, "t")).values()) == {100}


def test_all_columns_are_read_back(root: Root) -> None:
    root.create_topic("t")
    rows = messages.make_rows([b"v", None], [b"k", None])
    given = {
        "event_time": pa.array([1_000, None], pa.timestamp("ms", "UTC")),
        "ordering_key": pa.array([b"o", None]),
        "properties": pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string())),
        "schema_version": pa.array([b"\0" * 8, None]),
    }
    for name, column in given.items():
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
    write_id = messages.new_write_id()
    attach(root.store, write_id, [messages.stage(root, {"t": rows}, write_id)], None)
    columns = ("key", "value", *given)
    found = sorted((tuple(dict(m.columns)[name] for name in columns) for m in messages.read(root, "t")), key=str)
    expected = [
        tuple(
            rows.column(name)[n].as_py(maps_as_pydicts="strict")
            if name == "properties"
            else rows.column(name)[n].as_py()
            for name in columns
        )
        for n in range(2)
    ]
    assert found == sorted(expected, key=str)


def test_many_topics_share_a_file_and_files_roll(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_writer, "MAX_FILE_BYTES", 400_000)
    monkeypatch.setattr(task_writer, "MAX_BUFFER_BYTES", 300_000)
    names = [root.create_topic(f"t{number}").name for number in range(3)]
    write_id = messages.new_write_id()
    writer = writer_for(root)
    random = Random(7)
    expected: dict[str, list[bytes]] = {name: [] for name in names}
    for turn in range(20):
        for name in names:
            values = [f"{turn}-{row}-".encode() + random.randbytes(1_000) for row in range(40)]
            expected[name] += values
            writer.add(messages.target(root, name), messages.make_rows(values))
    output = writer.finish()
    attach(root.store, write_id, [output], None)

    assert 1 < len(output.files) < 20
    assert all(len({segment.topic for segment in file.segments}) > 1 for file in output.files[:-1])
    assert {name: messages.values(root, name) for name in names} == expected


def test_a_task_holds_no_more_than_its_limit_however_rows_are_spread(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition has nearly all rows: the few of the others must not keep whole batches in memory."""
    limit = 4 << 20
    monkeypatch.setattr(task_writer, "MAX_BUFFER_BYTES", limit)
    root.create_topic("t", partitions=8)
    target = messages.target(root, "t")
    writer = writer_for(root)
    idle_bytes = pa.total_allocated_bytes()
    largest_bytes = 0
    for turn in range(60):
        keys = [b"often"] * 990 + [b"rare-%d" % number for number in range(10)]
        writer.add(target, messages.make_rows([b"%0500d" % (turn * 1_000 + row) for row in range(1_000)], keys))
        largest_bytes = max(largest_bytes, pa.total_allocated_bytes() - idle_bytes)
    writer.abort()
    assert limit // 2 < largest_bytes < 2 * limit


def test_a_row_above_the_limit_names_the_topic(root: Root, stored_files: Callable[[Root], list[str]]) -> None:
    root.create_topic("t")
    writer = writer_for(root)
    writer.add(messages.target(root, "t"), messages.make_rows([b"small", bytes(6 << 20)]))
    with pytest.raises(InvalidArgumentError, match=r"default/t.*maxMessageSize"):
        writer.finish()
    writer.abort()
    assert stored_files(root) == []


def test_an_aborted_task_leaves_no_open_file(root: Root, stored_files: Callable[[Root], list[str]]) -> None:
    root.create_topic("t")
    writer = writer_for(root)
    writer.add(messages.target(root, "t"), messages.make_rows([bytes(1_000)] * 20_000))
    assert stored_files(root) != []
    writer.abort()
    assert stored_files(root) == []


# --- storage paths that fail under a write ---


@pytest.fixture
def roomy(tmp_path: Path) -> Root:
    """Four paths for three copies: one may fail and be replaced."""
    root = Root.create(tmp_path / "root", [tmp_path / f"disk{number}" for number in range(4)], Quorum(3, 3, 2))
    root.create_topic("t")
    return root


def directory(root: Root, path_id: int) -> Path:
    return root.storage_paths(root.store.view())[PathId(path_id)].directory


def take_away(path: Path) -> None:
    path.rename(path.with_name("away"))


def replace_by_file(path: Path) -> None:
    take_away(path)
    path.write_text("")


def block_segments(path: Path) -> None:
    """As on a read-only disk, the identity can be read and nothing can be made (also by a privileged user)."""
    shutil.rmtree(path / "segments")
    (path / "segments").write_text("")


def swap(path: Path) -> None:
    take_away(path)
    shutil.copytree(path.with_name("disk0" if path.name != "disk0" else "disk1"), path)


@pytest.mark.parametrize("damage", [take_away, replace_by_file, block_segments, swap])
def test_a_path_that_fails_is_replaced_marked_and_healed(roomy: Root, damage: Callable[[Path], None]) -> None:
    """Ensemble change, `mark_failed`, and `maintain` finds it well again."""
    messages.write(roomy, "t", [b"before"])
    paths = roomy.writable_paths(roomy.store.view())
    chosen = directory(roomy, 1)
    damage(chosen)
    outputs: list[TaskOutput] = []
    for number in range(6):  # whichever path a file starts with, one of these meets the damage
        write_id = messages.new_write_id()
        writer = TaskWriter(write_id, 0, paths, roomy.quorum, HashingScheme.JAVA_STRING_HASH)
        writer.add(messages.target(roomy, "t"), messages.make_rows([f"v{number}".encode()]))
        outputs.append(writer.finish())
        attach(roomy.store, write_id, [outputs[-1]], None)
    failures = [failure for output in outputs for failure in output.failures]
    assert {failure.path_id for failure in failures} == {1}
    assert all(len(file.written.copies) == 3 for output in outputs for file in output.files)
    roomy.mark_failed(failures)
    record = roomy.store.view().get(PathRecord, "1")
    assert record is not None
    assert (record.state, bool(record.reason)) == ("read-only", True)
    assert messages.values(roomy, "t") == [b"before", *numbered(6)]
    assert maintain.heal_paths(roomy) == (() if damage is not block_segments else (1,))

    if chosen.with_name("away").exists():
        if chosen.exists():
            shutil.rmtree(chosen) if chosen.is_dir() else chosen.unlink()
        chosen.with_name("away").rename(chosen)
    if damage is not block_segments:
        assert maintain.heal_paths(roomy) == (1,)
    assert [path.path_id for path in roomy.writable_paths(roomy.store.view())] == [0, 1, 2, 3]


def test_writing_continues_with_ack_quorum_copies_and_not_below(root: Root) -> None:
    root.create_topic("t")
    paths = root.writable_paths(root.store.view())
    take_away(directory(root, 0))
    write_id = messages.new_write_id()
    writer = TaskWriter(write_id, 0, paths, root.quorum, HashingScheme.JAVA_STRING_HASH)
    writer.add(messages.target(root, "t"), messages.make_rows([b"v"]))
    attach(root.store, write_id, [writer.finish()], None)
    (file,) = root.store.view().all(FileRecord)
    assert sorted(file.copies) == [1, 2]
    assert root.status().missing_copies == 1

    directory(root, 1).rename(directory(root, 1).with_name("gone"))
    writer = TaskWriter(messages.new_write_id(), 0, paths, root.quorum, HashingScheme.JAVA_STRING_HASH)
    writer.add(messages.target(root, "t"), messages.make_rows([b"w"]))
    with pytest.raises(NotEnoughCopiesError, match=r"has 1 good copies and needs 2"):
        writer.finish()
    assert messages.values(root, "t") == [b"v"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    image, mounted = tmp_path / "image", tmp_path / "small"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(4 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", image], check=True)
    try:
        subprocess.run(["mount", "-o", "loop", image, mounted], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"cannot mount a loop device: {error.stderr.decode().strip()}")
    yield mounted
    subprocess.run(["umount", mounted], check=True)


@pytest.mark.root
def test_a_full_disk_in_the_middle_of_a_file(tmp_path: Path, small_disk: Path) -> None:
    disks = [tmp_path / "a", small_disk, tmp_path / "b", tmp_path / "c"]
    root = Root.create(tmp_path / "root", disks, Quorum(4, 3, 2))
    root.create_topic("t")
    random = Random(7)
    values = [random.randbytes(4_000) for _ in range(400)]
    failures: list[PathFailure] = []
    writes = 0
    while not failures and writes < 100:  # each file draws three of the four disks
        writes += 1
        write_id = messages.new_write_id()
        paths = list(root.storage_paths(root.store.view()).values())
        writer = TaskWriter(write_id, 0, paths, root.quorum, HashingScheme.JAVA_STRING_HASH)
        for start in range(0, 400, 100):
            writer.add(messages.target(root, "t"), messages.make_rows(values[start : start + 100]))
        output = writer.finish()
        failures += output.failures
        attach(root.store, write_id, [output], None)
        assert len(output.files[0].written.copies) == 3
    assert {failure.path_id for failure in failures} == {1}
    assert "No space left" in failures[0].reason
    assert messages.values(root, "t") == values * writes
