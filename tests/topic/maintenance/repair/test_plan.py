"""The plan of repair: copies that count, and actions for others, in every state of a path and any mixture."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.ids import FileId, PathId, SegmentName
from pulsar_on_spark.storage.health import Condition, PathHealth, PathState
from pulsar_on_spark.topic.maintenance.repair.plan import (
    FilePlan,
    Trust,
    is_stranded,
    names_after,
    plan_file,
    trust_in,
)

NEW = f"{'a' * 32}-{'b' * 8}"
"""The generation of the plan's copies."""
THEIRS = f"{'c' * 32}-{'d' * 8}"


def file(*copies: int, write_quorum: int = 0) -> FileRecord:
    return FileRecord(file_id="f", write_id="w", copies=copies, write_quorum=write_quorum, length=1, batches=0)


def offloaded(*copies: int) -> FileRecord:
    return file(*copies).as_cold(datetime(2026, 1, 1, tzinfo=UTC))


def cold(path_id: int, state: PathState = "writable", condition: Condition = Condition.WELL) -> PathHealth:
    return PathHealth(path_id=PathId(path_id), role="cold", state=state, condition=condition, is_overdue=True)


def at(path_id: int, state: PathState = "writable", label: str = "") -> PathHealth:
    return PathHealth(path_id=PathId(path_id), state=state, label=label)


def copies_after(now: FileRecord, plan: FilePlan, restored: Sequence[PathId]) -> tuple[int, ...]:
    """Return the paths of the copies that a record names after the commit."""
    new = {path_id: SegmentName(FileId("f"), NEW) for path_id in restored}
    names = names_after(now, plan, new)
    assert now.with_names(names).names == names
    for path_id, name in names.items():
        assert name in (now.names.get(path_id), new.get(PathId(path_id))), "a name that was never there"
    return tuple(names)


def planned(record: FileRecord, *paths: PathHealth, wanted: int = 3, bad: Collection[int] = ()) -> FilePlan:
    return plan_file(record, wanted, {path.path_id: path for path in paths}, set(map(PathId, bad)))


@pytest.mark.parametrize(
    ("state", "is_there", "is_overdue", "is_checked", "expected"),
    [
        ("writable", True, False, True, (Trust.COUNTS, True, True)),
        ("writable", True, False, False, (Trust.PENDING, True, True)),
        ("read-only", True, True, True, (Trust.COUNTS, False, True)),
        ("read-only", False, False, True, (Trust.PENDING, False, False)),
        ("read-only", False, True, True, (Trust.GONE, False, False)),
        ("draining", True, False, True, (Trust.LEAVING, False, True)),
        ("draining", False, False, True, (Trust.GONE, False, False)),
        ("lost", True, False, True, (Trust.GONE, False, False)),
        ("lost", False, False, True, (Trust.GONE, False, False)),
        ("retired", True, False, True, (Trust.GONE, False, False)),
    ],
)
def test_trust_in_copies_on_a_path(
    state: PathState, is_there: bool, is_overdue: bool, is_checked: bool, expected: tuple[Trust, bool, bool]
) -> None:
    for condition in Condition:
        path = PathHealth(
            path_id=PathId(4), state=state, condition=condition, is_overdue=is_overdue, is_checked=is_checked
        )
        if path.is_there is is_there:
            assert (trust_in(path), path.is_writable, path.is_readable) == expected


def test_a_complete_file_needs_no_repair():
    assert planned(file(0, 1, 2), at(0), at(1), at(2), at(3)).is_idle


def test_a_bad_copy_is_rewritten_on_its_path():
    plan = planned(file(0, 1, 2), at(0), at(1), at(2), at(3), bad=[1])
    assert (plan.sources, plan.targets, plan.leaving, plan.lacking) == ((0, 2, 1), (1,), (), 0)
    assert copies_after(plan.file, plan, [PathId(1)]) == (0, 1, 2)


def test_a_bad_copy_on_a_read_only_path_moves():
    plan = planned(file(0, 1, 2), at(0), at(1, "read-only"), at(2), at(3), bad=[1])
    assert (plan.targets, plan.leaving) == ((3,), (1,))
    assert copies_after(plan.file, plan, [PathId(3)]) == (0, 2, 3)
    assert copies_after(plan.file, plan, []) == (0, 1, 2)


def test_a_draining_path_is_read_last_and_left_if_there_is_another():
    plan = planned(file(0, 1, 2), at(0, "draining"), at(1), at(2), at(3))
    assert (plan.sources, plan.targets, plan.leaving) == ((1, 2, 0), (3,), (0,))
    assert copies_after(plan.file, plan, [PathId(3)]) == (1, 2, 3)


def test_copies_stay_without_another_path():
    plan = planned(file(0, 1, 2), at(0, "draining"), at(1), at(2))
    assert plan.is_idle
    assert plan.lacking == 1


def test_a_lost_path_is_not_read():
    plan = planned(file(0, 1, 2), at(0, "lost"), at(1), at(2), at(3))
    assert (plan.sources, plan.targets, plan.leaving) == ((1, 2), (3,), (0,))


def test_unreachable_copies_are_waited_for():
    away = PathHealth(path_id=PathId(0), condition=Condition.UNREACHABLE)
    assert planned(file(0, 1, 2), away, at(1), at(2), at(3)).is_idle
    plan = planned(file(0, 1, 2), away, at(1, "draining"), at(2), at(3), at(4))
    assert len(plan.targets) == 1
    assert copies_after(plan.file, plan, plan.targets) == (0, 1, 2, *plan.targets), "only two copies are known as good"


def test_a_file_that_was_written_below_its_quorum_is_completed():
    plan = planned(file(0, 2), at(0), at(1), at(2))
    assert copies_after(plan.file, plan, plan.targets) == (0, 2, 1)
    assert planned(file(0, 2, write_quorum=2), at(0), at(1), at(2)).is_idle


def test_copies_go_where_no_other_is():
    paths = [at(0, "lost", "a"), at(1, label="a"), at(2, label="b"), at(3, label="a"), at(4, label="c")]
    assert planned(file(0, 1, 2), *paths).targets == (4,)


def test_the_second_of_two_workers_keeps_the_firsts_result():
    paths = [at(0, "lost"), at(1), at(2), at(3), at(4)]
    plan = planned(file(0, 1, 2), *paths)
    (target,) = plan.targets
    other = PathId(3 + 4 - target)
    by_first = plan.file.model_copy(update={"copies": (1, 2, other)})
    assert copies_after(by_first, plan, [target]) == (1, 2, other)


def test_a_bad_copy_that_another_worker_has_replaced_stays_as_it_is():
    plan = planned(file(0, 1, 2), at(0), at(1), at(2), bad=[1])
    theirs = SegmentName(FileId("f"), THEIRS)
    now = plan.file.with_names({**plan.file.names, 1: theirs})
    assert names_after(now, plan, {PathId(1): SegmentName(FileId("f"), NEW)}) == now.names
    assert now.generations == ("", THEIRS, "")
    back = now.with_names(plan.file.names)
    assert (back.copies, back.generations) == ((0, 1, 2), ())


def test_a_restored_copy_replaces_the_bad_one_under_its_own_name():
    plan = planned(file(0, 1, 2), at(0), at(1), at(2), bad=[1])
    new = SegmentName(FileId("f"), NEW)
    assert names_after(plan.file, plan, {PathId(1): new}) == {**plan.file.names, 1: new}


def test_new_copies_are_never_put_on_journal_paths_and_cold_paths():
    journal = PathHealth(path_id=PathId(4), role="journal")
    plan = planned(file(0, 1), at(0), at(1), cold(3), journal)
    assert (plan.targets, plan.lacking) == ((), 1)


def test_an_offloaded_file_needs_one_copy_on_a_cold_path():
    plan = planned(offloaded(0, 1, 3), at(0), at(1), at(2), cold(3), cold(4))
    assert plan.is_idle
    assert (plan.counted, plan.beside, plan.sources) == ((3,), (0, 1), (3, 0, 1))
    plan = planned(offloaded(0, 1, 3), at(0), at(1), at(2), cold(3), cold(4), bad=[0])
    assert copies_after(plan.file, plan, plan.targets) == (1, 3)


def test_a_bad_cold_copy_is_restored_from_the_others():
    plan = planned(offloaded(0, 1, 3), at(0), at(1), cold(3), bad=[3])
    assert (plan.sources, plan.targets, plan.lacking) == ((0, 1, 3), (3,), 0)
    assert copies_after(plan.file, plan, []) == (0, 1, 3)


def test_a_cold_store_that_is_away_is_waited_for():
    plan = planned(offloaded(3), at(0), at(1), cold(3, condition=Condition.UNREACHABLE), cold(4))
    assert plan.is_idle
    assert (plan.lacking, plan.away) == (0, (3,))


def test_a_hot_copy_by_another_worker_is_no_reason_to_skip_the_cold_one():
    hot = file(0, 1)
    plan = planned(hot.as_cold(datetime(2026, 1, 1, tzinfo=UTC)), at(0), at(1), at(2), cold(3))
    theirs = hot.with_names({**hot.names, 1: SegmentName(FileId("f"), THEIRS)})
    assert copies_after(theirs, plan, plan.targets) == (0, 1, 3)


def away(path_id: int, *, overdue: bool = True) -> PathHealth:
    return replace(cold(path_id, condition=Condition.UNREACHABLE), is_overdue=overdue)


@pytest.mark.parametrize("path", [away(3), cold(3, "lost"), cold(3, "draining", Condition.UNREACHABLE)])
def test_a_file_whose_cold_path_is_away_for_long_or_lost_has_its_quorum_of_other_copies(path):
    plan = planned(offloaded(0, 1, 3), at(0), at(1), at(2), path)
    assert (plan.counted, plan.targets, plan.lacking) == ((0, 1), (2,), 0)
    left = (0, 1, 3) if path.state == "writable" else (0, 1)
    assert copies_after(plan.file, plan, plan.targets) == (*left, 2)
    assert planned(offloaded(0, 1, 2, 3), at(0), at(1), at(2), away(3)).is_idle
    two = offloaded(0, 1, 3).model_copy(update={"write_quorum": 2})
    assert not planned(two, at(0), at(1), at(2), path).targets
    plan = planned(offloaded(3), at(0), at(1), at(2), path)
    assert (plan.targets, plan.is_idle) == ((), True)
    plan = planned(offloaded(0, 3), at(0, "draining"), at(1), at(2), at(4), path)
    assert len(plan.targets) == 3


def test_a_file_goes_to_another_cold_path_if_its_own_is_lost_and_waits_for_one_that_is_away_for_a_moment():
    plan = planned(offloaded(0, 1, 3), at(0), at(1), at(2), cold(3, "lost"), cold(4))
    assert (plan.targets, plan.beside) == ((4,), (0, 1))
    plan = planned(offloaded(0, 1, 3), at(0), at(1), at(2), away(3), cold(4))
    assert (plan.targets, plan.counted) == ((2,), (0, 1))
    plan = planned(offloaded(0, 1, 3), at(0), at(1), at(2), away(3, overdue=False), cold(4))
    assert plan.is_idle


def test_other_copies_stay_on_a_draining_path_until_the_end_of_the_lag():
    plan = planned(offloaded(0, 1, 3), at(0, "draining"), at(1), at(2), cold(3))
    assert (plan.is_idle, plan.beside) == (True, (1, 0))
    plan = planned(file(0, 1).as_cold(datetime(2026, 1, 1, tzinfo=UTC)), at(0, "draining"), at(1, "draining"), cold(3))
    assert copies_after(plan.file, plan, plan.targets) == (0, 1, 3)


def test_a_new_cold_copy_has_the_label_that_its_topics_name():
    paths = {path.path_id: path for path in (at(0), cold(3, "draining"), replace(cold(4), label="x"), cold(5))}

    def targets(*drivers: str) -> tuple[int, ...]:
        return plan_file(offloaded(3), 3, paths, (), drivers).targets

    assert targets("x") == (4,)
    assert targets("y") == targets("x", "y") == ()
    assert targets() in ((4,), (5,))
    assert plan_file(offloaded(3), 3, paths, (), {"y"}).lacking == 1


PATHS = st.fixed_dictionaries(
    {
        PathId(number): st.builds(
            PathHealth,
            path_id=st.just(PathId(number)),
            label=st.sampled_from(["", "a", "b"]),
            role=st.sampled_from(["both", "segments", "cold"]),
            state=st.sampled_from(get_args(PathState)),
            is_checked=st.booleans(),
            is_overdue=st.booleans(),
            condition=st.sampled_from(Condition),
            free_bytes=st.none() | st.integers(0, 100),
        )
        for number in range(6)
    }
)


@given(
    PATHS,
    st.lists(st.integers(0, 7), unique=True, max_size=5),
    st.sets(st.integers(0, 7)),
    st.integers(1, 4),
    st.booleans(),
    st.data(),
)
def test_a_record_never_names_fewer_good_copies_than_before(paths, copies, bad, wanted, is_cold, data):
    """Whatever the states are, whichever targets fail, and whatever another worker did meanwhile."""
    record = offloaded(*copies) if is_cold else file(*copies)
    is_cold = is_cold and not is_stranded(record, paths, bad)
    wanted = 1 if is_cold else wanted
    plan = plan_file(record, wanted, paths, set(map(PathId, bad)))
    trusted = {path_id for path_id in copies if path_id in paths and trust_in(paths[path_id]) is Trust.COUNTS} - bad
    good = {path_id for path_id in trusted if paths[path_id].is_cold is is_cold}
    assert set(plan.counted) == good
    assert trusted - good <= set(plan.beside)
    assert not set(plan.beside) & set(plan.leaving)
    assert all(paths[path_id].is_cold is is_cold for path_id in plan.targets)
    assert len(set(plan.targets)) == len(plan.targets)
    assert all(paths[path_id].is_writable for path_id in plan.targets)
    assert not good & set(plan.targets)
    assert not set(plan.leaving) & good
    assert all(paths[path_id].is_readable for path_id in plan.sources)

    restored = [path_id for path_id in plan.targets if data.draw(st.booleans())]
    theirs = data.draw(st.lists(st.sampled_from(sorted(paths)), unique=True, max_size=2))
    now = record.with_names({**record.names, **dict.fromkeys(theirs, SegmentName(FileId("f"), THEIRS))})
    after = copies_after(now, plan, restored)
    good_now = good | set(theirs)
    good_after = (good_now | set(restored)) & set(after)
    assert len(set(after)) == len(after)
    assert good_now <= set(after)
    assert len(good_after) >= min(wanted, len(good_now | set(restored)))
    assert set(after) <= set(now.copies) | set(restored)
    if len(good_after) < wanted:
        assert set(now.copies) <= set(after)
