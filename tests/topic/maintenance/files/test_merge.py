"""Merging keeps every message, id and column, whatever happens at the same time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.ledger.segments.segment_reader import verify_file
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord, WriteRecord
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.data_path.attach import attach
from pulsar_on_spark.topic.maintenance.files import merge, rewrite
from tests.kit import messages

Locate = Callable[[Root, FileRecord, int], Path]
NAMES = ("a", "b", "parts")


class Killed(BaseException):
    """The process ends here."""


def fill(root: Root, writes: int = 20) -> None:
    """Writes of a few rows each over three topics, with keys, properties, nulls and event times."""
    for name in NAMES:
        if not any(topic.name.endswith(f"/{name}") for topic in root.topics()):
            root.create_topic(name, 4 if name == "parts" else None)
    for number in range(writes):
        made = {}
        for name in NAMES[: 1 + number % 3]:
            values = [None if row == 2 else f"{name} {number} {row}".encode() for row in range(5)]
            rows = messages.make_rows(values, [f"k{row % 3}".encode() for row in range(5)])
            properties = pa.array(
                [[("n", str(number))], None, [], None, [("x", "y")]], pa.map_(pa.string(), pa.string())
            )
            times = pa.array([number, None, 2, None, 4], pa.timestamp("ms", "UTC"))
            for column, array in (("properties", properties), ("event_time", times)):
                rows = rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), array)
            made[name] = rows
        write_id = messages.new_write_id()
        attach(root.store, write_id, [messages.stage(root, made, write_id)], None)


def everything(root: Root) -> dict[str, list[messages.Message]]:
    return {topic.name: messages.read(root, topic.name) for topic in root.topics()}


def test_the_same_messages_in_few_segments_and_files(root: Root) -> None:
    fill(root)
    before = everything(root)
    rows_before = sum(segment.rows for segment in root.store.view().all(SegmentRecord))

    done = merge.merge(root)

    view = root.store.view()
    segments = view.all(SegmentRecord)
    assert everything(root) == before
    assert (len(segments), done.new_segments, done.new_files) == (5, 5, 1)
    assert len({segment.file_id for segment in segments}) == 1
    assert sum(segment.rows for segment in segments) == rows_before == sum(map(len, before.values()))
    for segment in segments:
        assert sum(n for n, _ in segment.entry_rows) == segment.entries == sum(segment.batch_entries)
        assert sum(n * rows for n, rows in segment.entry_rows) == segment.rows
    file = view.get(FileRecord, segments[0].file_id)
    assert file is not None
    assert all(old.replaced_at is not None for old in view.all(FileRecord) if old != file)
    for path_id in file.copies:
        verify_file(file, root.storage_paths(view)[PathId(path_id)])
    assert merge.merge(root) == merge.MergeReport()


def test_merging_again_and_again(root: Root) -> None:
    for _ in range(4):
        fill(root, 7)
        before = everything(root)
        merge.merge(root)
        assert everything(root) == before
    assert len(root.store.view().all(SegmentRecord)) <= 12


def test_writing_continues_after_and_during_a_merge(root: Root) -> None:
    """Appends to a topic during its merge do not stop the merge."""
    fill(root)
    jobs = merge.plan(root.store.view())
    fill(root, 3)
    before = everything(root)
    pieces, _ = merge._run(root, jobs[0])
    assert len(pieces) == 5
    assert everything(root) == before
    fill(root, 3)
    found = messages.read(root, "a")
    assert [m.id for m in found] == sorted(m.id for m in found)
    assert len(found) == 26 * 5


@pytest.mark.parametrize("recreated", [False, True])
def test_a_topic_that_is_deleted_meanwhile_drops_out_alone(root: Root, recreated: bool) -> None:
    fill(root)
    (job,) = merge.plan(root.store.view())
    root.delete_topic("a")
    if recreated:
        root.create_topic("a")
        messages.write(root, "a", [b"new"])
    before = everything(root)
    pieces, _ = merge._run(root, job)
    assert {piece.topic.rpartition("/")[2][:1] for piece in pieces} == {"b", "p"}
    assert everything(root) == before


def test_the_later_of_two_merges_of_one_range_gives_up(root: Root) -> None:
    fill(root)
    (job,) = merge.plan(root.store.view())
    before = everything(root)
    assert len(merge._run(root, job)[0]) == 5
    assert merge._run(root, job)[0] == []
    assert everything(root) == before
    assert sorted(verdict.status for verdict in root.store.view().all(WriteRecord)) == ["aborted"] + ["committed"] * 21


def test_a_part_that_was_merged_meanwhile_drops_out_alone(root: Root) -> None:
    fill(root)
    (job,) = merge.plan(root.store.view())
    one = merge.MergeJob(job.runs[2:4], job.named_by)
    before = everything(root)
    assert len(merge._run(root, one)[0]) == 2
    assert len(merge._run(root, job)[0]) == 3
    assert everything(root) == before
    assert all(f.replaced_at is not None for f in root.store.view().all(FileRecord) if f.file_id in job.named_by)


def test_a_file_that_others_still_need_is_not_marked(root: Root) -> None:
    fill(root)
    (job,) = merge.plan(root.store.view())
    merge._run(root, merge.MergeJob(job.runs[:1], job.named_by))
    view = root.store.view()
    named = {segment.file_id for segment in view.all(SegmentRecord)}
    assert named & set(job.named_by)
    assert all((file.replaced_at is None) == (file.file_id in named) for file in view.all(FileRecord))


def test_a_bad_copy_is_passed_over_and_not_copied(root: Root, copy_of: Locate) -> None:
    fill(root)
    before = everything(root)
    for file in root.store.view().all(FileRecord):
        for path_id in file.copies[:2]:
            copy = copy_of(root, file, path_id)
            content = bytearray(copy.read_bytes())
            content[len(content) // 2] ^= 1
            copy.write_bytes(content)
    merge.merge(root)
    assert everything(root) == before
    assert root.status(verify=True).bad_copies == ()


def test_an_unreadable_segment_stays_and_the_rest_is_merged(root: Root, copy_of: Locate) -> None:
    fill(root)
    view = root.store.view()
    broken = view.all(FileRecord)[5]
    for path_id in broken.copies:
        copy = copy_of(root, broken, path_id)
        copy.write_bytes(bytes(broken.length))
    before = {s.record_id for s in view.all(SegmentRecord) if s.file_id == broken.file_id}
    expected = {t.name: messages.read(root, t.name, fail_on_data_loss=False) for t in root.topics()}

    merge.merge(root)
    merge.merge(root)

    left = {s.record_id for s in root.store.view().all(SegmentRecord) if s.file_id == broken.file_id}
    assert left == before
    assert len(root.store.view().all(SegmentRecord)) <= 5 + 2 * len(before)
    assert {t.name: messages.read(root, t.name, fail_on_data_loss=False) for t in root.topics()} == expected
    assert {report.file_id for report in root.status().losses} == {broken.file_id}


def test_a_killed_merge_changes_nothing(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(root)
    before = everything(root)
    writer = merge.SegmentFileWriter
    for method in ("write_batch", "close"):

        def die(*_: object) -> None:
            raise Killed

        monkeypatch.setattr(writer, method, die)
        with pytest.raises(Killed):
            merge.merge(root)
        monkeypatch.undo()
        assert everything(root) == before
    monkeypatch.setattr(root.store, "commit", die)
    with pytest.raises(Killed):
        merge.merge(root)
    monkeypatch.undo()
    assert everything(root) == before
    assert all(file.replaced_at is None for file in root.store.view().all(FileRecord))
    merge.merge(root)
    assert everything(root) == before


def test_runs_larger_than_memory_are_written_in_pieces(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "MAX_BUFFER_BYTES", 4_000)
    monkeypatch.setattr(rewrite, "RECORD_BATCH_BYTES", 2_000)
    fill(root)
    before = everything(root)
    merge.merge(root)
    assert everything(root) == before


def test_memory_stays_within_bounds(root: Root) -> None:
    """300 MB of messages pass through less than half of that."""
    root.create_topic("t", 3)
    random = Random(1)
    value = random.randbytes(20_000)
    for number in range(30):
        messages.write(root, "t", [number.to_bytes(4, "big") + row.to_bytes(4, "big") + value for row in range(500)])
    expected = sorted(value[:8] for value in messages.values(root, "t") if value)
    pool = pa.default_memory_pool()
    base, peaks, original = pool.bytes_allocated(), [], rewrite._Rewriting._read

    def reading(self: rewrite._Rewriting, file: FileRecord, stretch: list[rewrite._Wanted]) -> None:
        original(self, file, stretch)
        peaks.append(pool.bytes_allocated() - base)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite._Rewriting, "_read", reading)
        done = merge.merge(root)
    assert done.merged_segments == 90
    assert max(peaks) < 130e6
    assert sorted(value[:8] for value in messages.values(root, "t") if value) == expected


# --- the plan ---


def segment(number: int, size_bytes: int) -> SegmentRecord:
    return SegmentRecord(
        topic_id="t",
        ledger_id=1,
        first_entry=number,
        entries=1,
        rows=1,
        bytes=size_bytes,
        file_id=f"file{number}",
        first_batch=0,
        batch_entries=(1,),
        entry_rows=((1, 1),),
        entry_offset=number,
        publish_min_ms=0,
        publish_max_ms=0,
    )


@given(st.lists(st.integers(1, merge.SMALL_BYTES * 2), max_size=60))
def test_runs_hold_small_neighbours_within_bounds(sizes: list[int]) -> None:
    segments = [segment(number, size) for number, size in enumerate(sizes)]
    runs = [worth for run in merge._adjacent(segments, ()) for p in merge._chop(run) if (worth := merge._worth(p, ()))]
    for run in runs:
        assert len(run) > 1
        assert all(b.first_entry == a.first_entry + 1 for a, b in pairwise(run))
        assert all(each.bytes < merge.SMALL_BYTES for each in run)
        assert merge.cost_bytes(run) <= merge.MAX_RUN_BYTES
        assert run[0].bytes <= sum(each.bytes for each in run[1:])


def test_a_message_is_rewritten_a_few_times_however_long_its_topic_grows() -> None:
    """Each pass adds one segment and merges: the work grows as n log n, not as n squared."""
    segments: list[SegmentRecord] = []
    rewritten = 0
    for number in range(1_000):
        segments.append(segment(number, 100))
        for piece in [p for run in merge._adjacent(segments, ()) for p in merge._chop(run)]:
            worth = merge._worth(piece, ())
            if worth:
                rewritten += sum(each.bytes for each in worth)
                joined = worth[0].model_copy(
                    update={"bytes": sum(s.bytes for s in worth), "entries": sum(s.entries for s in worth)}
                )
                segments[segments.index(worth[0]) : segments.index(worth[-1]) + 1] = [joined]
    assert sum(each.bytes for each in segments) == 100_000
    assert len(segments) <= 12
    assert rewritten <= 100_000 * 12


def test_excluded_files_end_a_run() -> None:
    segments = [segment(number, 100) for number in range(5)]
    assert [[s.first_entry for s in run] for run in merge._adjacent(segments, {"file2"})] == [[0, 1], [3, 4]]


def test_tiny_files_without_neighbours_are_gathered(root: Root) -> None:
    for number in range(20):
        root.create_topic(f"t{number}")
        messages.write(root, f"t{number}", [str(number).encode()])
    before = everything(root)
    assert merge.merge(root).new_files == 1
    assert everything(root) == before
    assert len({segment.file_id for segment in root.store.view().all(SegmentRecord)}) == 1
    assert merge.merge(root).new_files == 0
