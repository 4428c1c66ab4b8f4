"""Plans of offloading, and plans that are out of date when they are committed."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.metadata.records import FileRecord, Record, SegmentRecord, TopicRecord
from pulsar_on_spark.metadata.state import State, View, encode
from pulsar_on_spark.model.ids import PathId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.health import PathHealth
from pulsar_on_spark.topic.catalog.policies.policies import OffloadPolicies
from pulsar_on_spark.topic.data_path.attach import attach
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload, requested
from pulsar_on_spark.topic.maintenance.offload.plan import (
    Basis,
    OffloadPlan,
    PoliciesOf,
    beyond_thresholds,
    plan_offload,
    plan_release,
)
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.repair.audit import audit
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.worker import commit, new_write_id, restore
from tests.kit import messages
from tests.topic.maintenance.offload.conftest import root_with_cold_path

COLD = PathId(3)
ALL = OffloadRequest(TopicName.parse("t"))
NOW_MS = 1_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.fixture
def cold_root(memory_path: Path) -> Root:
    """A root with a topic of one file, and a cold path."""
    return root_with_cold_path(memory_path, [b"v" * 100])


def basis(
    root: Root,
    policies_of: PoliciesOf = lambda topic: OffloadPolicies(),
    lag: timedelta = timedelta(),
    bad: Mapping[str, Collection[PathId]] | None = None,
) -> Basis:
    view = root.store.view()
    return Basis(view, root.examine_paths(view), bad or {}, policies_of, datetime.now(UTC) + lag)


def planned(root: Root, policies: Mapping[str, OffloadPolicies], requests: Mapping[str, Position]) -> OffloadPlan:
    view = root.store.view()
    short = {topic.name: topic.name.rpartition("/")[2] for topic in view.all(TopicRecord)}
    return plan_offload(basis(root, lambda topic: policies.get(short[topic.name], OffloadPolicies())), requests)


def the_file(root: Root) -> FileRecord:
    (file,) = root.store.view().all(FileRecord)
    return file


def segment(first: int, size_bytes: int, age_s: int) -> SegmentRecord:
    return SegmentRecord(
        topic_id="t",
        ledger_id=1,
        first_entry=first,
        entries=1,
        rows=1,
        bytes=size_bytes,
        file_id=str(first),
        first_batch=0,
        batch_entries=(1,),
        entry_rows=((1, 1),),
        entry_offset=0,
        publish_min_ms=NOW_MS - age_s * 1000,
        publish_max_ms=NOW_MS - age_s * 1000,
    )


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(-5, 100)), max_size=8),
    st.integers(-1, 200),
    st.integers(-1, 100),
)
def test_segments_beyond_a_threshold(sizes_and_ages: list[tuple[int, int]], limit_bytes: int, limit_s: int) -> None:
    segments = [segment(number, size, age) for number, (size, age) in enumerate(sizes_and_ages)]
    policies = OffloadPolicies(
        managed_ledger_offload_threshold_in_bytes=limit_bytes, managed_ledger_offload_threshold_in_seconds=limit_s
    )
    beyond = {each.first_entry for each in beyond_thresholds(segments, policies, NOW_MS)}
    for each in segments:
        newer = sum(other.bytes for other in segments[each.first_entry :])
        is_old = limit_s >= 0 and NOW_MS - each.publish_max_ms >= limit_s * 1000
        assert (each.first_entry in beyond) is (is_old or 0 <= limit_bytes < newer)


def test_topics_of_one_file_must_agree_on_the_driver(cold_root: Root) -> None:
    cold_root.create_topic("u")
    write_id = messages.new_write_id()
    rows = {"t": messages.make_rows([b"1"]), "u": messages.make_rows([b"2"])}
    attach(cold_root.store, write_id, [messages.stage(cold_root, rows, write_id)], None)
    at_once = {"managed_ledger_offload_threshold_in_bytes": 0}
    archive = OffloadPolicies(managed_ledger_offload_driver="archive", **at_once)
    other = OffloadPolicies(managed_ledger_offload_driver="other", **at_once)
    found = planned(cold_root, {"t": archive, "u": OffloadPolicies(**at_once)}, {})
    assert (len(found.moves), found.waiting, found.shared) == (2, 0, 0)
    found = planned(cold_root, {"t": archive, "u": other}, {})
    assert (len(found.moves), found.waiting, found.shared) == (1, 0, 1)
    found = planned(cold_root, {"t": other, "u": other}, {})
    assert (len(found.moves), found.waiting, found.shared) == (0, 2, 0)


def test_a_repair_from_before_the_move_changes_nothing(cold_root: Root) -> None:
    file = the_file(cold_root)
    paths = cold_root.current_storage_paths()
    paths[PathId(file.copies[0])].delete_segment(file.names[file.copies[0]])
    (plan,) = audit(cold_root, RepairLimits()).plans(3)
    staged = restore(plan, paths, new_write_id())
    offload(cold_root, ALL)
    offload(cold_root, now=lambda: datetime.now(UTC) + timedelta(hours=5))
    assert commit(cold_root, [staged]).moved == 0
    assert the_file(cold_root).copies == (COLD,)
    stored = [each for path in paths.values() for each in path.segment_files(0)]
    assert len(stored) == 1


def test_a_move_to_a_path_that_was_lost_meanwhile_changes_nothing(cold_root: Root) -> None:
    before = the_file(cold_root)
    (plan,) = planned(cold_root, {}, requested(cold_root.store.view(), ALL)).moves
    staged = restore(plan, cold_root.current_storage_paths(), new_write_id())
    assert set(staged.copies) == {COLD}
    storage_paths.give_up(cold_root, COLD)
    assert commit(cold_root, [staged]).moved == 0
    assert the_file(cold_root) == before


def test_nothing_is_released_without_a_cold_copy_that_counts(cold_root: Root) -> None:
    offload(cold_root, ALL)
    lag = timedelta(hours=5)
    (plan,) = plan_release(basis(cold_root, lag=lag))
    assert (plan.counted, sorted(plan.leaving)) == ((COLD,), [0, 1, 2])
    assert plan_release(basis(cold_root)) == []
    assert plan_release(basis(cold_root, lag=lag, bad={the_file(cold_root).file_id: {COLD}})) == []
    storage_paths.give_up(cold_root, COLD)
    assert plan_release(basis(cold_root, lag=lag)) == []


def test_the_time_for_a_plan_grows_with_the_number_of_files() -> None:
    """If it grew with its square, 16,000 files would take more than ten seconds."""
    records: list[Record] = [TopicRecord(topic_id="t", name="persistent://public/default/t", created_at=NOW)]
    for number in range(16_000):
        file_id = f"{number:08}"
        records.append(FileRecord(file_id=file_id, write_id="w", copies=(0, 1, 2), length=100, batches=1))
        records.append(segment(number, 100, 10).model_copy(update={"file_id": file_id}))
    state = State()
    state.apply(encode([(record, False) for record in records], 1, f"{1:032d}", ["k"]))
    view = View(state, 1)
    paths = {PathId(number): PathHealth(path_id=PathId(number), role="both") for number in range(3)}
    paths[COLD] = PathHealth(path_id=COLD, role="cold")
    due = OffloadPolicies(managed_ledger_offload_threshold_in_bytes=0)
    began_s = time.process_time()
    known = Basis(view, paths, {}, lambda _: due, NOW)
    assert len(plan_offload(known, {}).moves) == 16_000
    assert plan_release(known) == []
    assert time.process_time() - began_s < 5
