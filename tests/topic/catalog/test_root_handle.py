"""Making and opening roots: only where there is nothing, going on where it was cut off, light to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from pulsar_on_spark.metadata.records import PathRecord, RootRecord
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import (
    FormatVersionError,
    InvalidArgumentError,
    NotARootError,
    RootExistsError,
    StoragePathError,
    TopicExistsError,
)
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.model.root_path import local_path
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.storage_path import PathFailure
from tests.kit import messages


class CutOff(BaseException):
    """The process ends here."""


def test_a_new_root_takes_messages_and_gives_them_back_after_reopening(tmp_path: Path) -> None:
    made = Root.create(tmp_path / "a root", quorum=Quorum(3, 2, 1))
    made.create_topic("clicks")
    messages.write(made, "clicks", [b"one", None, b"three"])

    opened = Root.open(str(tmp_path / "a root"))

    assert (opened.cluster_id, str(opened.quorum)) == (made.cluster_id, "3/2/1")
    assert messages.values(opened, "clicks") == [b"one", None, b"three"]
    assert len(opened.storage_paths(opened.store.view())) == 3


def test_opening_a_root_does_not_load_spark(root: Root) -> None:
    script = (
        "import sys, pulsar_on_spark; root = pulsar_on_spark.Root.open(sys.argv[1]); root.status(); root.maintain(); "
        "print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, root.path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_storage_paths_elsewhere(tmp_path: Path) -> None:
    disks = [tmp_path / f"disk{number}" for number in range(2)]
    root = Root.create(tmp_path / "root", disks, Quorum(2, 2, 1))
    root.create_topic("t")
    messages.write(root, "t", [b"v"])
    assert all(list(disk.glob("segments/*/*.arrow")) for disk in disks)
    assert not (tmp_path / "root" / "storage").exists()


def test_refusals_name_the_place_and_change_nothing(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("...")
    with pytest.raises(NotARootError, match=r"holds 'thesis.tex'"):
        Root.create(foreign)
    with pytest.raises(NotARootError, match="not a pulsar_on_spark root"):
        Root.open_or_create(foreign)
    assert os.listdir(foreign) == ["thesis.tex"]

    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(NotARootError, match="is a file"):
        Root.create(file)
    with pytest.raises(NotARootError):
        Root.open_or_create(file)

    with pytest.raises(NotARootError, match="does not exist"):
        Root.open(tmp_path / "nowhere")
    with pytest.raises(NotARootError):
        Root.open(foreign)
    assert not (tmp_path / "nowhere").exists()


def test_a_root_is_made_once(root: Root) -> None:
    with pytest.raises(RootExistsError, match="is a root already"):
        Root.create(root.path)
    assert Root.open_or_create(root.path).cluster_id == root.cluster_id


def test_an_empty_folder_becomes_a_root_with_a_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    Root.open_or_create(empty)
    assert "Created the root" in caplog.text
    assert Root.open(empty).topics() == []


@pytest.mark.parametrize(
    ("paths", "quorum", "message"),
    [(["a", "b"], "3/3/2", "needs 3"), (["a", "a", "b"], "2/2/1", "once"), (["a", "b", "c"], "4/3/2", "needs 4")],
)
def test_too_few_storage_paths(tmp_path: Path, paths: list[str], quorum: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Root.create(tmp_path / "root", [tmp_path / path for path in paths], Quorum.parse(quorum))
    assert not (tmp_path / "root").exists()


def test_a_storage_path_of_another_root_is_refused(root: Root, tmp_path: Path) -> None:
    taken = [root.path / "storage" / str(number) for number in range(3)]
    with pytest.raises(StoragePathError, match="of cluster"):
        Root.create(tmp_path / "second", taken)


def test_a_newer_format_version_is_refused(root: Root) -> None:
    newer = RootRecord(format_version=3, cluster_id=root.cluster_id, quorum="3/3/2")
    with pytest.raises(FormatVersionError):  # the commit is done
        root.store.commit(lambda _: Change(puts=[newer], keys={"root": None}))
    for attempt in (Root.open, Root.create, Root.open_or_create):
        with pytest.raises(FormatVersionError, match="upgrade"):
            attempt(root.path)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_interrupted_init_continues_from_some_steps(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Cut at each third sync, others with paths elsewhere."""
    check_interrupted_inits(memory_path, monkeypatch, elsewhere, range(1 + elsewhere, 200, 3))


@pytest.mark.long
@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_interrupted_init_continues_from_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    check_interrupted_inits(tmp_path, monkeypatch, elsewhere, range(200))


def check_interrupted_inits(folder: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool, cut_at: range) -> None:
    """Cut at syncs: what is on the disk then is finished by the next attempt."""
    real_fsync, left = os.fsync, [0]

    def fsync(descriptor: int) -> None:
        if left[0] == 0:
            raise CutOff
        left[0] -= 1
        real_fsync(descriptor)

    for cuts in cut_at:
        base = folder / str(cuts)
        paths = [base / f"disk{number}" for number in range(3)] if elsewhere else []
        left[0] = cuts
        monkeypatch.setattr(os, "fsync", fsync)
        try:
            Root.create(base / "root", paths)
        except CutOff:
            monkeypatch.setattr(os, "fsync", real_fsync)
            try:
                made = Root.create(base / "root", paths)
            except RootExistsError:
                made = Root.open(base / "root")
            made.create_topic("t")
            messages.write(made, "t", [b"v"])
            assert messages.values(Root.open(base / "root"), "t") == [b"v"]
        else:
            assert cuts > 10
            return
    pytest.fail("init never came to its end")


@pytest.mark.long
def test_several_writers_make_one_root(tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    script = "import sys; from pulsar_on_spark import Root; print(Root.open_or_create(sys.argv[1]).cluster_id)"
    started = [start_python(script, tmp_path / "root") for _ in range(3)]
    found = {process.communicate()[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert found == {Root.open(tmp_path / "root").cluster_id}


def test_a_folder_that_another_process_is_making_is_not_occupied(memory_path: Path) -> None:
    """The folder is listed once: one made between two listings was mistaken for a folder with other content."""
    folder = memory_path / "root"
    is_over = threading.Event()

    def make_again_and_again() -> None:
        while not is_over.is_set():
            folder.mkdir()
            folder.rmdir()

    making = threading.Thread(target=make_again_and_again)
    making.start()
    try:
        assert not any(Root.is_occupied(folder) for _ in range(3_000))
    finally:
        is_over.set()
        making.join()


def test_a_shared_handle_notices_that_the_root_was_replaced(root: Root) -> None:
    first = Root.shared(root.path)
    assert Root.shared(root.path) is first
    root.path.rename(root.path.with_name("old"))
    second = Root.create(root.path)
    assert Root.shared(root.path).cluster_id == second.cluster_id != first.cluster_id


def test_failed_paths_are_written_to_only_below_the_ack_quorum(root: Root) -> None:
    root.mark_failed([PathFailure(PathId(1), "disk is full")])
    view = root.store.view()
    failed = view.get(PathRecord, "1")
    assert (failed.state, failed.reason, failed.failed_at.tzinfo) == ("read-only", "disk is full", UTC)
    assert [path.path_id for path in root.writable_paths(view)] == [0, 2]

    root.mark_failed([PathFailure(PathId(2), "too"), PathFailure(PathId(1), "again")])
    view = root.store.view()
    assert sorted(path.path_id for path in root.writable_paths(view)) == [0, 1, 2]
    assert view.all(PathRecord)[1].reason == "disk is full"


def test_paths_given_as_uris(tmp_path: Path) -> None:
    assert local_path(f"file://{tmp_path}/x") == tmp_path / "x"
    assert local_path(f"file:{tmp_path}/x") == tmp_path / "x"
    for wrong in ("s3://bucket/root", "", "  "):
        with pytest.raises(InvalidArgumentError):
            local_path(wrong)


def test_the_cluster_id_is_what_storage_paths_carry(root: Root) -> None:
    identity = json.loads((root.path / "storage" / "2" / "pulsarpy-path.json").read_text())
    assert identity == {"format_version": 1, "cluster_id": root.cluster_id, "path_id": 2}
    assert root.store.view().all(RootRecord)[0].format_version == 2


def test_the_repr_of_a_root_has_its_path_and_quorum(root: Root) -> None:
    assert repr(root) == f"Root({str(root.path)!r}, quorum=3/3/2)"


def test_a_topic_that_exists_is_an_error_or_ignored(root: Root) -> None:
    made = root.create_topic("orders", 3)
    with pytest.raises(TopicExistsError, match="orders exists already"):
        root.create_topic("orders", 3)
    assert root.create_topic("orders", if_exists="ignore") == made
    with pytest.raises(InvalidArgumentError, match="if_exists is 'ok': give 'error' or 'ignore'"):
        root.create_topic("others", if_exists="ok")  # type: ignore[arg-type]


DDL = "id BIGINT NOT NULL, city STRING, tags ARRAY<STRING>"
STRUCT = StructType(
    [
        StructField("id", LongType(), False),
        StructField("city", StringType()),
        StructField("tags", ArrayType(StringType())),
    ]
)


@pytest.mark.parametrize("schema", [DDL, STRUCT, STRUCT.json()], ids=["DDL", "StructType", "json"])
def test_a_schema_is_given_as_spark_has_it_or_as_avro(root: Root, schema: str | StructType) -> None:
    root.create_topic("orders", schema=schema)
    made = root.declare_schema("orders", schema)
    assert made.version == 0, "it is the one that the topic was created with"
    fields = json.loads(made.data)["fields"]
    assert fields[0] == {"name": "id", "type": "long"}
    assert fields[1] == {"name": "city", "type": ["null", "string"], "default": None}
    assert root.declare_schema("orders", made.data) == made
    assert root.declare_schema("orders", f"{DDL}, note STRING").version == 1


@pytest.mark.parametrize(
    ("schema", "schema_type", "said"),
    [
        ("id BIGNIT", "JSON", "Schema 'id BIGNIT' cannot be read at 'BIGNIT'"),
        ("at TIMESTAMP", "JSON", "The field 'at' is .* Pulsar's JSON has no form for: use AVRO, or make it a number"),
        ("a STRUCT<n: DECIMAL(9, 2)>", "JSON", "The field 'a_n' is decimal"),
        ("`odd name` INT", "AVRO", "The field 'odd name' has a name that Avro does not allow"),
        ("m MAP<INT, INT>", "AVRO", "The field 'm' is map.* which Avro has no form for"),
        ("id BIGINT", "XML", "Schema type 'XML' is not known"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "interval", "nullable": true}]}', "AVRO", "'interval'"),
    ],
)
def test_schemas_that_no_topic_can_have(root: Root, schema: str, schema_type: str, said: str) -> None:
    root.create_topic("orders")
    with pytest.raises(InvalidArgumentError, match=said):
        root.declare_schema("orders", schema, schema_type)
