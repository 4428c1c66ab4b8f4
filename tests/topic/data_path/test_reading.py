"""Reading continues with any good copy, finds merged entries, and distinguishes losses from skips."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import CopiesUnreachableError, DataLossError
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.files import OsFiles
from pulsar_on_spark.storage.reports import ReportKind, read_reports
from pulsar_on_spark.topic.data_path.attach import attach
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice
from tests.kit import messages

Locate = Callable[[Root, FileRecord, int], Path]


def flip(file: Path, offset: int) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 0x10
    file.write_bytes(content)


def cut(file: Path, offset: int) -> None:
    file.write_bytes(file.read_bytes()[:offset])


def remove(file: Path, offset: int) -> None:
    file.unlink()


def refuse_segments(files: OsFiles, path: Path) -> int:
    """Have no descriptor for a segment file."""
    if path.suffix == ".arrow":
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


@pytest.fixture
def written(root: Root) -> list[bytes]:
    """A topic with one file of several batches."""
    root.create_topic("t")
    random = Random(3)
    values = [random.randbytes(4_000) for _ in range(4_000)]
    messages.write(root, "t", values)
    (segment,) = root.store.view().all(SegmentRecord)
    assert len(segment.batch_entries) > 2
    return values


def slices(root: Root, first: int | None = None, end: int | None = None) -> list[SegmentSlice]:
    view = root.store.view()
    (part,) = messages.target(root, "t").parts
    plan = chain.plan_range(view, part.name, part.topic_id, -1, EARLIEST, chain.read_limit(view, part.topic_id))
    return [one.part(one.first if first is None else first, one.end if end is None else end) for one in plan.slices]


def reader(root: Root, *columns: str, fail_on_data_loss: bool = True) -> SliceReader:
    paths = root.storage_paths(root.store.view())
    return SliceReader(root.path, paths, columns or tuple(SEGMENT_SCHEMA.names), fail_on_data_loss)


def read(root: Root, one: SegmentSlice, *, fail_on_data_loss: bool = True) -> list[bytes]:
    found = reader(root, "value", fail_on_data_loss=fail_on_data_loss).read(one)
    return [value for _, batch in found for value in batch.column("value").to_pylist()]


def test_any_part_of_a_segment(root: Root, written: list[bytes]) -> None:
    (whole,) = slices(root)
    ends = [0]
    for entries, rows in whole.entry_runs():
        ends += [ends[-1] + rows // entries * (n + 1) for n in range(entries)]
    random = Random(4)
    for _ in range(30):
        first, end = sorted(random.sample(range(whole.end + 1), 2))
        assert read(root, whole.part(first, end)) == written[ends[first] : ends[end]]


def test_only_the_wanted_columns(root: Root, written: list[bytes]) -> None:
    (whole,) = slices(root)
    for one in (whole, whole.part(1, whole.end - 1)):
        names = {tuple(batch.schema.names) for _, batch in reader(root, "publish_time", "value").read(one)}
        assert names == {("publish_time", "value")}


@pytest.mark.parametrize("damage", [flip, cut, remove])
@pytest.mark.parametrize("part", [0.0, 0.2, 0.5, 0.8])
def test_one_bad_copy_is_reported_and_another_is_used(
    root: Root, written: list[bytes], copy_of: Locate, damage: Callable[[Path, int], None], part: float
) -> None:
    (file,) = root.store.view().all(FileRecord)
    for path_id in file.copies:  # one of them is the one that readers of this file try first
        copy = copy_of(root, file, path_id)
        whole = copy.read_bytes()
        damage(copy, int(file.length * part))
        assert read(root, slices(root)[0]) == written
        copy.write_bytes(whole)
    (report,) = read_reports(root.path)
    assert (report.kind, report.file_id) == (ReportKind.BAD_COPY, file.file_id)
    assert root.status().bad_copies == (report,)


def test_a_path_that_is_away_or_swapped(root: Root, written: list[bytes]) -> None:
    storage = root.path / "storage"
    shutil.rmtree(storage / "0")
    assert read(root, slices(root)[0]) == written
    shutil.copytree(storage / "1", storage / "0")
    assert read(root, slices(root)[0]) == written


def test_entries_without_a_good_copy_are_an_error(root: Root, written: list[bytes], copy_of: Locate) -> None:
    (file,) = root.store.view().all(FileRecord)
    for path_id in file.copies:
        flip(copy_of(root, file, path_id), file.length // 2)
    with pytest.raises(DataLossError, match=r"messages of .*default/t .*failOnDataLoss"):
        read(root, slices(root)[0])


def test_losses_may_be_skipped_with_a_count(
    root: Root, written: list[bytes], copy_of: Locate, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the batch that is bad in every copy is left out."""
    (file,) = root.store.view().all(FileRecord)
    (whole,) = slices(root)
    offset = sum(file.tile_lengths[:3]) + 100 if file.tile_lengths else file.length // 2
    for path_id in file.copies:
        flip(copy_of(root, file, path_id), offset)
    found = read(root, whole, fail_on_data_loss=False)
    lost = [value for value in written if value not in set(found)]
    assert 0 < len(lost) < len(written) / 2
    assert found == [value for value in written if value not in set(lost)]
    assert f"{len(lost)} messages of" in caplog.text
    (loss,) = root.status().losses
    assert f"{len(lost)} messages" in loss.reason


def spoil(root: Root, copy_of: Locate, file: FileRecord, *batches: int) -> None:
    """Damage batches (by number) in every copy."""
    for batch in batches:
        for path_id in file.copies:
            flip(copy_of(root, file, path_id), sum(file.tile_lengths[: batch + 1]) + 100)


def segment_rows(segment: SegmentRecord, batch: int) -> int:
    """Messages in a batch (by its number in the file)."""
    rows = [rows for count, rows in segment.entry_rows for _ in range(count)]
    first = sum(segment.batch_entries[: batch - segment.first_batch])
    return sum(rows[first : first + segment.batch_entries[batch - segment.first_batch]])


def test_a_loss_report_holds_the_total_of_its_file_and_topic(root: Root, copy_of: Locate) -> None:
    """Two topics in one file, and batches that are not adjacent; the same read again adds nothing."""
    for topic in ("t", "u"):
        root.create_topic(topic)
    random = Random(5)
    rows = {topic: messages.make_rows([random.randbytes(4_000) for _ in range(4_000)]) for topic in ("t", "u")}
    write_id = messages.new_write_id()
    attach(root.store, write_id, [messages.stage(root, rows, write_id)], None)
    (file,) = root.store.view().all(FileRecord)
    by_topic = {}
    for topic in ("t", "u"):
        (part,) = messages.target(root, topic).parts
        (by_topic[topic],) = root.store.view().all(SegmentRecord, part.topic_id)
    bad = {topic: [segment.first_batch, segment.first_batch + 2] for topic, segment in by_topic.items()}
    assert file.tile_lengths, "the test needs few enough batches"
    spoil(root, copy_of, file, *bad["t"], *bad["u"])

    for _ in range(2):
        for topic, segment in by_topic.items():
            gone = 4_000 - len(messages.read(root, topic, fail_on_data_loss=False))
            assert gone == sum(segment_rows(segment, batch) for batch in bad[topic]) > 0
        found = {report.reason.partition(" are lost: ")[0]: report.file_id for report in root.status().losses}
        totals = {name: sum(segment_rows(by_topic[name], batch) for batch in bad[name]) for name in bad}
        assert found == {
            f"{total} messages of persistent://public/default/{name}": file.file_id for name, total in totals.items()
        }


def test_the_total_does_not_depend_on_how_a_read_is_cut(root: Root, written: list[bytes], copy_of: Locate) -> None:
    (file,) = root.store.view().all(FileRecord)
    (whole,) = slices(root)
    spoil(root, copy_of, file, 0, 1, 3)
    batches = whole.batches()
    total = sum(segment_rows(whole.segment, batch) for batch in (0, 1, 3))
    for cuts in ([], [batches[1].first], [batches[1].first - 1, batches[3].first + 1]):
        ends = [0, *cuts, whole.end]
        found = [
            value
            for first, end in pairwise(ends)
            for value in read(root, whole.part(first, end), fail_on_data_loss=False)
        ]
        assert len(found) == len(written) - total
        (loss,) = root.status().losses
        assert loss.reason.startswith(f"{total} messages of ")


def test_a_file_missing_from_every_path_is_one_loss(root: Root, written: list[bytes], copy_of: Locate) -> None:
    (file,) = root.store.view().all(FileRecord)
    for path_id in file.copies:
        copy_of(root, file, path_id).unlink()
    for _ in range(2):
        assert read(root, slices(root)[0], fail_on_data_loss=False) == []
    (report,) = read_reports(root.path)
    assert report.lost is not None
    assert sum(report.lost.rows) == len(written)
    (loss,) = root.status().losses
    assert loss.reason.startswith(f"{len(written)} messages of ")


@pytest.mark.parametrize("allow", [False, True])
def test_the_log_is_accurate_if_all_copies_are_bad(
    root: Root, written: list[bytes], copy_of: Locate, caplog: pytest.LogCaptureFixture, allow: bool
) -> None:
    """Each bad copy is said once, and none is said to be replaced by another."""
    (file,) = root.store.view().all(FileRecord)
    spoil(root, copy_of, file, *range(file.batches))
    if allow:
        assert read(root, slices(root)[0], fail_on_data_loss=False) == []
    else:
        with pytest.raises(DataLossError):
            read(root, slices(root)[0])
    assert "another one is used" not in caplog.text
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if text.startswith(f"Copy of file {file.file_id}")]) == len(file.copies)
    skipped = [text for text in said if "were skipped" in text]
    assert len(skipped) == allow
    assert all(text.startswith(f"{len(written)} messages of ") for text in skipped)


@pytest.mark.parametrize("allow", [False, True])
def test_unreachable_entries_are_not_lost(
    root: Root, written: list[bytes], copy_of: Locate, monkeypatch: pytest.MonkeyPatch, allow: bool
) -> None:
    """The three copies become unreachable, damaged or lost in turn: only the last one makes it a loss."""
    (file,) = root.store.view().all(FileRecord)
    (whole,) = slices(root)
    storage, away = root.path / "storage", root.path / "away"

    def must_wait(reason: str) -> None:
        with pytest.raises(CopiesUnreachableError, match=reason) as error:
            read(root, whole, fail_on_data_loss=not allow)
        assert "failOnDataLoss" not in str(error.value)
        assert not root.status().losses

    storage.rename(away)
    must_wait("mount its disk")
    away.rename(storage)
    with monkeypatch.context() as patch:
        patch.setattr(OsFiles, "open", refuse_segments)
        must_wait("Too many open files")
    assert read(root, whole, fail_on_data_loss=not allow) == written

    copy_of(root, file, 0).unlink()
    flip(copy_of(root, file, 1), file.length // 2)
    (storage / "2").rename(away)
    must_wait("mount its disk")
    storage_paths.give_up(root, 2)
    if allow:
        found = read(root, whole, fail_on_data_loss=False)
        assert 0 < len(found) < len(written), "of the damaged copy all is read but one batch"
    else:
        with pytest.raises(DataLossError, match="failOnDataLoss"):
            read(root, whole)
    away.rename(storage / "2")
    assert read(root, whole, fail_on_data_loss=not allow) == written


def test_a_reader_without_its_root_names_the_unreachable_paths(root: Root, written: list[bytes]) -> None:
    """An executor without the mount reports neither a missing root nor a loss."""
    (whole,) = slices(root)
    blind = reader(root, "value", fail_on_data_loss=False)
    root.path.rename(root.path.with_name("elsewhere"))
    with pytest.raises(CopiesUnreachableError, match="mount its disk"):
        list(blind.read(whole))


def test_copies_that_moved_to_a_new_path_are_found_there(
    root: Root, written: list[bytes], tmp_path: Path, copy_of: Locate
) -> None:
    """A task's plan is older than the paths: those that it knows were retired meanwhile."""
    planned, blind = slices(root)[0], reader(root, "value")
    for path_id in range(3):
        storage_paths.add(root, tmp_path / f"new-{path_id}")
    for path_id in range(3):
        storage_paths.drain(root, path_id)
    root.repair()
    for path_id in range(3):
        storage_paths.retire(root, path_id)
    assert [value for _, batch in blind.read(planned) for value in batch.column("value").to_pylist()] == written


@pytest.mark.parametrize("allow", [False, True])
def test_a_file_that_is_gone_from_everywhere(root: Root, written: list[bytes], copy_of: Locate, allow: bool) -> None:
    (file,) = root.store.view().all(FileRecord)
    for path_id in file.copies:
        copy_of(root, file, path_id).unlink()
    if allow:
        assert read(root, slices(root)[0], fail_on_data_loss=False) == []
    else:
        with pytest.raises(DataLossError):
            read(root, slices(root)[0])


def test_entries_are_found_again_after_a_merge(root: Root) -> None:
    """A plan made before a merge is read after the old files are gone, from its middle on too."""
    root.create_topic("t")
    for number in range(6):
        messages.write(root, "t", [f"{number}-{row}".encode() for row in range(3)])
    planned = slices(root)
    assert len(planned) == 6
    under_way = reader(root, "value").read(planned[3])
    assert next(under_way)[1].column("value").to_pylist() == [b"3-0", b"3-1", b"3-2"]

    merge.merge(root)
    assert collect(root, Ages(keep_replaced_s=-1)).deleted_files == 18

    assert list(under_way) == []
    for number, one in enumerate(planned):
        found = list(reader(root, "value", "entry_id").read(one))
        assert [v for _, batch in found for v in batch.column("value").to_pylist()] == [
            f"{number}-{row}".encode() for row in range(3)
        ]
        assert all(batch.column("entry_id")[0].as_py() + where.segment.entry_offset == number for where, batch in found)


@pytest.mark.parametrize("allow", [False, True])
def test_a_loss_that_is_found_when_a_place_is_resolved_again(
    root: Root, copy_of: Locate, caplog: pytest.LogCaptureFixture, allow: bool
) -> None:
    """A range planned as one segment lies in two others now, and the entries between them are gone."""
    root.create_topic("t")
    for number in range(3):
        messages.write(root, "t", [f"{number}-{row}".encode() for row in range(4)])
    before = root.store.view()
    apart = before.all(SegmentRecord)
    merge.merge(root)
    (planned,) = slices(root)
    assert planned.segment.entries == 3
    kept = [apart[0], apart[2]]
    files = [before.get(FileRecord, segment.file_id) for segment in kept]
    (topic,) = root.topics()
    change = Change(puts=[*kept, *(file for file in files if file is not None)], keys={keys.topic(topic.name): None})
    root.store.commit(lambda _: change)
    for path_id in planned.file.copies:
        copy_of(root, planned.file, path_id).unlink()

    if not allow:
        with pytest.raises(DataLossError, match=rf"4 messages of {topic.name} .* lost: entries 1:1 to 1:2 are gone"):
            read(root, planned)
        return
    assert read(root, planned, fail_on_data_loss=False) == [f"{n}-{row}".encode() for n in (0, 2) for row in range(4)]
    assert f"4 messages of {topic.name} " in caplog.text
    assert "were skipped" in caplog.text


def test_a_topic_that_was_deleted_under_a_reader(root: Root, written: list[bytes]) -> None:
    planned = slices(root)
    root.delete_topic("t")
    collect(root, Ages(keep_replaced_s=600))
    assert read(root, planned[0]) == written
    collect(root, Ages(keep_replaced_s=-1))
    root.create_topic("t")
    messages.write(root, "t", [b"of another topic"] * 4_000)
    with pytest.raises(DataLossError):
        read(root, planned[0])


def test_a_loss_is_reported_with_exact_numbers(root: Root, copy_of: Locate) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"a"])
    (file,) = root.store.view().all(FileRecord)
    for path_id in file.copies:
        flip(copy_of(root, file, path_id), file.length // 2)
    with pytest.raises(DataLossError, match=r"^1 message of .*default/t \(entry 1:0\) is lost: .* without it, set"):
        read(root, slices(root)[0])
    messages.write(root, "t", [b"b"] * 1_500)
    (_, more) = sorted(root.store.view().all(FileRecord), key=lambda each: each.length)
    for path_id in more.copies:
        flip(copy_of(root, more, path_id), more.length // 2)
    with pytest.raises(DataLossError, match=r"^1500 messages of .*default/t \(entries 1:1 to 1:2\) are lost"):
        read(root, slices(root)[1])
