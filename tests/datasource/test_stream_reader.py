"""The stream reader without a subscription, driven as Spark drives it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from pulsar_on_spark.datasource.stream_reader import IDLE_POLL_S
from pulsar_on_spark.model.errors import (
    DataLossError,
    FormatVersionError,
    InvalidArgumentError,
    PulsarpyError,
    TopicNotFoundError,
)
from pulsar_on_spark.root import Root
from tests.kit.messages import values, write
from tests.kit.micro_batches import Checkpoint, MicroBatchQuery, Point

EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture
def root(root_with_topic: Root) -> Root:
    return root_with_topic


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def query(root: Root, kept: Checkpoint, *, available_now: bool = False, once: bool = False, **options: str):
    chosen = options if {"topics", "topicsPattern"} & options.keys() else {"topic": "t", **options}
    return MicroBatchQuery(root.path, kept, chosen, available_now=available_now, once=once)


def test_a_new_query_starts_at_the_end_as_of_its_start(root: Root):
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    run = query(root, kept)
    assert not run.run()
    write(root, "t", numbered(10, 5))
    # Spark asks for the initial offset again before each look, as long as there was no batch.
    assert run.run_all() == 1
    assert kept.values == numbered(10, 5)


def test_offsets_outlive_the_process_in_the_middle(root: Root):
    kept = Checkpoint()
    write(root, "t", numbered(0, 10))
    query(root, kept, **EARLIEST).run_all()
    write(root, "t", numbered(10, 10))
    # The checkpoint wins over startingOffsets.
    query(root, kept, startingOffsets="latest").run_all()
    assert kept.values == numbered(0, 20)
    assert [json.loads(text)["consumer"] for text in kept.offsets] == [json.loads(kept.offsets[0])["consumer"]] * 2


@pytest.mark.parametrize("point", list(Point))
def test_a_batch_cut_off_anywhere_is_the_same_batch_again(root: Root, point: Point):
    kept = Checkpoint()
    write(root, "t", numbered(0, 10))
    for first in (10, 20, 30):
        assert query(root, kept, **EARLIEST).run(stop_at=point)
        write(root, "t", numbered(first, 10))  # more data must not get into the logged batch
        assert query(root, kept, startingOffsets="latest").run()
    query(root, kept).run_all()
    assert [len(kept.sink[batch]) for batch in sorted(kept.sink)] == [10, 10, 10, 10]
    assert kept.values == numbered(0, 40)


def test_batch_zero_is_replayed_completely_with_another_start(root: Root):
    """Pitfall D4: Spark logs only the end of batch 0, and passes a fresh initial offset as its start."""
    kept = Checkpoint()
    write(root, "t", numbered(0, 10))
    query(root, kept, **EARLIEST).run(stop_at=Point.PLANNED)
    query(root, kept, startingOffsets="latest").run()
    assert kept.values == numbered(0, 10)


def test_a_batch_is_the_same_after_a_merge_of_its_segments(root: Root):
    kept = Checkpoint()
    for first in range(0, 60, 5):
        write(root, "t", numbered(first, 5))
    query(root, kept, maxMessagesPerTrigger="33", includeMetadata="true", **EARLIEST).run(stop_at=Point.WRITTEN)
    before = kept.sink[0]
    assert root.maintain().merge.merged_segments > 0
    write(root, "t", numbered(60, 5))
    run = query(root, kept, includeMetadata="true")
    run.run()
    assert kept.sink[0] == before
    assert len(before) == 30
    run.run_all()
    assert kept.values == numbered(0, 65)


def test_the_initial_offset_of_a_missing_topic_is_an_error(root: Root):
    with pytest.raises(TopicNotFoundError, match="nothing-here"):
        MicroBatchQuery(root.path, Checkpoint(), {"topic": "nothing-here"})


def test_ending_offsets_belong_to_batches(root: Root):
    with pytest.raises((InvalidArgumentError, AssertionError)):
        query(root, Checkpoint(), endingOffsets="latest")


# -- admission -----------------------------------------------------------------------------------------------------


def test_a_limit_is_soft_and_never_splits_an_entry(root: Root):
    for _ in range(3):
        write(root, "t", numbered(0, 1_500))  # entries of 1,000 and 500
    kept = Checkpoint()
    query(root, kept, maxMessagesPerTrigger="600", **EARLIEST).run_all()
    assert [len(kept.sink[batch]) for batch in sorted(kept.sink)] == [1_000, 500, 1_000, 500, 1_000, 500]
    kept = Checkpoint()
    query(root, kept, maxBytesPerTrigger="9000", **EARLIEST).run_all()
    assert [len(kept.sink[batch]) for batch in sorted(kept.sink)] == [1_500, 1_500, 1_500]


def test_available_now_reads_up_to_the_end_at_its_start(root: Root):
    root.create_topic("more")
    write(root, "t", numbered(0, 100))
    for limit in ({}, {"maxMessagesPerTrigger": "10"}):
        kept = Checkpoint()
        run = query(root, kept, available_now=True, topicsPattern="t|more", **limit, **EARLIEST)
        expected = stored_values(root)
        write(root, "t", numbered(1_000, 7))
        write(root, "more", numbered(2_000, 7))
        run.run_all()
        assert sorted(kept.values) == expected
        rest = query(root, kept, available_now=True, topicsPattern="t|more")
        rest.run_all()
        assert sorted(kept.values) == stored_values(root)


def stored_values(root: Root) -> list[bytes | None]:
    return sorted(values(root, "t") + values(root, "more"))


def test_no_topic_starves(root: Root):
    """A busy topic is refilled before each batch; a quiet one has a single entry that is above its share."""
    root.create_topic("quiet")
    write(root, "quiet", [b"quiet"] * 900)
    write(root, "t", [b"busy"] * 3_000)
    kept = Checkpoint()
    run = query(root, kept, topics="t,quiet", maxMessagesPerTrigger="100", **EARLIEST)
    for _ in range(4):
        run.run()
        write(root, "t", [b"busy"] * 2_000)
    assert kept.values.count(b"quiet") == 900
    assert kept.values.count(b"busy") >= 2_000


def test_trigger_once_reads_all_messages(root: Root):
    for _ in range(3):
        write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    limits = {"maxMessagesPerTrigger": "5", "maxBytesPerTrigger": "5", "minOffsetsPerTrigger": "1000"}
    assert query(root, kept, once=True, **limits, **EARLIEST).run()
    assert len(kept.values) == 30


def test_the_default_limit_is_set_by_options(root: Root):
    found = {
        name: query(root, Checkpoint(), **options).reader.getDefaultReadLimit()
        for name, options in {
            "none": {},
            "rows": {"maxOffsetsPerTrigger": "7"},
            "bytes": {"maxBytesPerTrigger": "8"},
            "least": {"minOffsetsPerTrigger": "9"},
        }.items()
    }
    assert found == {
        "none": ReadAllAvailable(),
        "rows": ReadMaxRows(7),
        "bytes": ReadMaxBytes(8),
        "least": ReadMinRows(9),
    }


def test_a_minimum_is_waited_for_but_not_longer_than_the_delay(root: Root):
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    run = query(root, kept, minOffsetsPerTrigger="15", maxTriggerDelay="1 hour", **EARLIEST)
    assert not run.run()
    write(root, "t", numbered(10, 5))
    assert run.run()
    assert len(kept.values) == 15
    late = query(root, Checkpoint(), minOffsetsPerTrigger="1000", maxTriggerDelay="300ms", **EARLIEST)
    assert not late.run()
    time.sleep(0.3)
    assert late.run()
    assert query(root, Checkpoint(), available_now=True, minOffsetsPerTrigger="1000", **EARLIEST).run()


# -- idle and backlog ----------------------------------------------------------------------------------------------


def test_an_idle_stream_gives_its_start_back_and_looks_rarely(root: Root):
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    run = query(root, kept, **EARLIEST)
    run.run_all()
    start = json.loads(kept.offsets[-1])
    root.create_topic("unrelated")
    assert run.reader.latestOffset(start, ReadAllAvailable()) is start
    began_s = time.monotonic()
    for _ in range(3):
        assert run.reader.latestOffset(start, ReadAllAvailable()) is start
    assert time.monotonic() - began_s > 2.5 * IDLE_POLL_S
    # Each poll is a look: Spark takes the answer of the next one for the proof that all is read.
    write(root, "t", numbered(10, 10))
    assert run.reader.latestOffset(start, ReadAllAvailable()) != start


def test_the_backlog_is_reported_in_messages_and_bytes(root: Root):
    for _ in range(4):
        write(root, "t", [b"x" * 100] * 10)
    run = query(root, Checkpoint(), maxMessagesPerTrigger="10", **EARLIEST)
    assert run.reader.reportLatestOffset() is None
    found = []
    while run.run():
        found.append(run.reader.reportLatestOffset())
    name = "persistent://public/default/t"
    assert [report["backlogMessages"] for report in found] == [30, 20, 10, 0]
    assert [report["backlogBytes"] for report in found] == [3_000, 2_000, 1_000, 0]
    assert found[0]["topics"] == {name: json.loads(run.checkpoint.offsets[-1])["topics"][name]["to"]}


# -- topics come and go --------------------------------------------------------------------------------------------


def test_new_partitions_and_new_matching_topics_start_at_their_earliest_message(root: Root):
    root.create_topic("clicks-a", 2)
    kept = Checkpoint()
    run = query(root, kept, topicsPattern="clicks-.*")
    assert not run.run()
    root.add_partitions("clicks-a", 4)
    root.create_topic("clicks-b")
    write(root, "clicks-a", numbered(0, 100), [b"key%d" % number for number in range(100)])
    write(root, "clicks-b", numbered(100, 10))
    write(root, "t", [b"not mine"])
    run.run_all()
    assert sorted(kept.values) == numbered(0, 110)
    assert len(json.loads(kept.offsets[-1])["topics"]) == 5


def test_a_pattern_may_match_nothing_yet(root: Root):
    kept = Checkpoint()
    run = query(root, kept, topicsPattern="later-.*")
    assert not run.run()
    root.create_topic("later-1")
    write(root, "later-1", [b"x"])
    run.run_all()
    assert kept.values == [b"x"]


@pytest.mark.parametrize("recreated", [False, True])
def test_a_topic_that_is_deleted_under_a_query_is_a_loss(root: Root, recreated: bool):
    write(root, "t", numbered(0, 10))
    strict, lenient = Checkpoint(), Checkpoint()
    runs = [query(root, strict, **EARLIEST), query(root, lenient, failOnDataLoss="false", **EARLIEST)]
    for run in runs:
        run.run_all()
    root.delete_topic("t")
    if recreated:
        root.create_topic("t")
        write(root, "t", numbered(500, 5))
    words = "deleted and created again under this query" if recreated else "deleted under this query"
    time.sleep(0.1)
    with pytest.raises(DataLossError, match=f"{words}; to continue without them, set option failOnDataLoss to false"):
        runs[0].run()
    runs[1].run_all()
    assert lenient.values == numbered(0, 10) + (numbered(500, 5) if recreated else [])


@pytest.mark.parametrize("recreated", [False, True])
def test_a_logged_batch_of_a_deleted_topic_is_a_loss(root: Root, recreated: bool):
    write(root, "t", numbered(0, 10))
    root.create_topic("other")
    write(root, "other", [b"other"])
    kept = Checkpoint()
    query(root, kept, topics="t,other", **EARLIEST).run(stop_at=Point.LOGGED)
    root.delete_topic("t")
    if recreated:
        root.create_topic("t")
    with pytest.raises(DataLossError, match="topic persistent://public/default/t was deleted under this query"):
        query(root, kept, topicsPattern="t|other").run()
    query(root, kept, topicsPattern="t|other", failOnDataLoss="false").run()
    assert kept.values == [b"other"]


def test_a_topic_removed_from_the_options_is_reported(root: Root):
    root.create_topic("other")
    write(root, "t", numbered(0, 10))
    write(root, "other", [b"x"])
    kept = Checkpoint()
    query(root, kept, topics="t,other", **EARLIEST).run(stop_at=Point.LOGGED)
    run = query(root, kept, topics="other", **EARLIEST)
    run.run()  # the logged batch is whole nevertheless
    assert sorted(kept.values) == sorted([b"x", *numbered(0, 10)])
    with pytest.raises(DataLossError, match="options no longer select it"):
        run.run()


def test_a_topic_that_ends_before_the_offset_is_a_loss(root: Root, tmp_path: Path):
    """A root restored from an older backup: new messages would reuse ids, and the query would skip them."""
    import shutil

    write(root, "t", numbered(0, 10))
    shutil.copytree(root.path, tmp_path / "backup")
    write(root, "t", numbered(10, 10))
    kept = Checkpoint()
    query(root, kept, **EARLIEST).run_all()
    restored = Root.open(tmp_path / "backup")
    with pytest.raises(DataLossError, match="ends at 1:1, and this query has read it up to 1:2"):
        query(restored, kept).run()


# -- checkpoints ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_a_newer_version_is_refused(root: Root):
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    query(root, kept, **EARLIEST).run_all()
    kept.offsets[-1] = json.dumps(json.loads(kept.offsets[-1]) | {"v": 99})
    with pytest.raises(FormatVersionError, match="offset has version 99"):
        query(root, kept).run()


@pytest.mark.parametrize("text", ["{}", "[]", '{"v": 1, "consumer": 5, "topics": {}}', '{"partition": 7}'])
def test_a_foreign_checkpoint_is_one_sentence(root: Root, text: str):
    kept = Checkpoint(offsets=[text], commits=1)
    with pytest.raises(PulsarpyError, match="start with a new checkpointLocation"):
        query(root, kept).run()


def test_equal_offsets_have_equal_text(root: Root):
    root.create_topic("p", 3)
    write(root, "p", numbered(0, 50))
    ends = []
    for _ in range(2):
        kept = Checkpoint()
        query(root, kept, topics="p", **EARLIEST).run_all()
        ends.append(json.dumps(json.loads(kept.offsets[0]) | {"consumer": ""}))
    assert ends[0] == ends[1]
