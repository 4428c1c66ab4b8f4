"""Each rule of ownership by itself; `test_ownership_simulation.py` lets them work together."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.metadata.cursors import CursorRow, Cursors
from pulsar_on_spark.metadata.records import SlotOwner, SubscriptionRecord
from pulsar_on_spark.model.errors import ConsumerBusyError, ConsumerFencedError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import ALL, SlotRange, TopicOffset
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import (
    Fenced,
    Keep,
    Lost,
    Refuse,
    Release,
    Situation,
    Standby,
    Take,
    apply,
    decide,
    held_after,
    next_epoch,
    planned,
)
from pulsar_on_spark.topic.managed_ledger.subscription.positions import current_positions, cursor_moves, mark_delete
from pulsar_on_spark.topic.managed_ledger.subscription.slots import slots_of

TOPIC = TopicId("a" * 32)
ALIVE, UNKNOWN, EXPIRED = LeaseState.ALIVE, LeaseState.UNKNOWN, LeaseState.EXPIRED


def at(entry: int) -> Position:
    return Position(LedgerId(1), EntryId(entry))


def owned(consumer: str | None, epoch: int, start: int = 0, slots: tuple[int, ...] = (0,)) -> SlotOwner:
    return SlotOwner(consumer=consumer, epoch=epoch, start_ledger=1, start_entry=start, slots=slots)


def subscription(kind: str = "Exclusive", *owners: SlotOwner, **fields: object) -> SubscriptionRecord:
    values = {"start_ledger": 1, "start_entry": 0, "start_epoch": 1, "created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    return SubscriptionRecord(topic_id=TOPIC, name="s", type=kind, owners=owners, **(values | fields))


def situation(record: SubscriptionRecord, cursor: int = 10, **fields: object) -> Situation:
    """Consumer `b` looks, with the cursor of every slot at `cursor`."""
    values = {"others": {}, "held": {}, "committed": None} | fields
    return Situation("b", record.type, "t", record, dict.fromkeys(slots_of(record.type), at(cursor)), **values)


def read(epoch: int, start: int, end: int, slots: tuple[int, ...] | str = ALL) -> TopicOffset:
    return TopicOffset(TOPIC, (SlotRange(slots, epoch, at(start), at(end)),))


# --- Exclusive and Failover ---


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
@pytest.mark.parametrize("face", ["spark", None])
def test_a_free_subscription_is_taken_at_the_cursor(kind: str, face: str | None) -> None:
    record = subscription(kind, face=face)
    actions = decide(situation(record))
    assert actions == (Take("b", 2, {0: at(10)}),)
    assert apply(record, actions).owners == (owned("b", 2, 10),)
    assert apply(record, actions).face == "spark"
    assert held_after(actions) == {0: 2}


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_slots_of_this_process_are_kept_without_a_commit(kind: str) -> None:
    record = subscription(kind, owned("b", 4))
    actions = decide(situation(record, held={0: 4}, committed=read(4, 0, 25)))
    assert actions == (Keep(4, {0: at(25)}),)
    assert apply(record, actions) is record


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_restart_takes_at_once_under_a_new_epoch_where_the_checkpoint_is(kind: str) -> None:
    record = subscription(kind, owned("b", 4))
    alive = {"b": ALIVE, "a": ALIVE}
    assert decide(situation(record, others=alive, committed=read(4, 0, 25))) == (Take("b", 5, {0: at(25)}),)
    assert decide(situation(record, others=alive)) == (Take("b", 5, {0: at(10)}),), "without its checkpoint: the cursor"


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_checkpoint_set_back_by_a_power_cut_is_read_from_there(kind: str) -> None:
    actions = decide(situation(subscription(kind, owned("b", 4)), cursor=30, committed=read(4, 0, 25)))
    assert actions == (Take("b", 5, {0: at(25)}),)


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
@pytest.mark.parametrize(("cursor", "start"), [(10, 25), (30, 30)])
def test_once_another_has_read_the_further_of_checkpoint_and_cursor_counts(kind: str, cursor: int, start: int) -> None:
    record = subscription(kind, owned("a", 5))
    actions = decide(situation(record, cursor, others={"a": EXPIRED}, committed=read(4, 0, 25)))
    assert actions == (Take("b", 6, {0: at(start)}),)


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
@pytest.mark.parametrize("others", [{"a": EXPIRED}, {}], ids=["run out", "no lease file"])
def test_the_lease_has_run_out(kind: str, others: dict[str, LeaseState]) -> None:
    assert decide(situation(subscription(kind, owned("a", 5)), others=others)) == (Take("b", 6, {0: at(10)}),)


def test_exclusive_waits_for_one_lease_period_and_then_refuses() -> None:
    record = subscription("Exclusive", owned("a", 5))
    assert decide(situation(record, others={"a": UNKNOWN})) == (Standby(),)
    (refusal,) = decide(situation(record, others={"a": ALIVE}))
    assert isinstance(refusal, Refuse)
    with pytest.raises(ConsumerBusyError, match="'s' on topic 't' is Exclusive and consumer 'a' is reading it: stop"):
        raise refusal.error()


def test_failover_waits_while_the_active_consumer_lives() -> None:
    record = subscription("Failover", owned("z", 5))
    for state in (UNKNOWN, ALIVE):
        assert decide(situation(record, others={"z": state, "a": ALIVE})) == (Standby(),)


def test_failover_goes_to_the_first_live_consumer_by_name() -> None:
    record = subscription("Failover", owned("z", 5))
    assert decide(situation(record, others={"z": EXPIRED, "a": ALIVE})) == (Standby(),)
    assert decide(situation(record, others={"z": EXPIRED, "a": EXPIRED, "c": ALIVE})) == (Take("b", 6, {0: at(10)}),)


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared"])
def test_another_process_of_the_same_consumer_fences_this_one(kind: str) -> None:
    (fenced,) = decide(situation(subscription(kind, owned("b", 5)), held={0: 4}))
    assert isinstance(fenced, Fenced)
    with pytest.raises(ConsumerFencedError, match=r"as the same consumer 'b'.*consumerName"):
        raise fenced.error()


def test_losing_an_exclusive_subscription_fails_and_losing_failover_waits() -> None:
    lost = {"held": {0: 4}, "others": {"a": ALIVE}}
    (fenced,) = decide(situation(subscription("Exclusive", owned("a", 5)), **lost))
    assert isinstance(fenced, Fenced)
    assert "another consumer took it" in fenced.text
    assert decide(situation(subscription("Failover", owned("a", 5)), **lost)) == (Lost((0,)), Standby())


# --- both faces, types, resets ---


def test_the_other_face_is_refused() -> None:
    (refusal,) = decide(situation(subscription("Shared", face="broker")))
    assert isinstance(refusal, Refuse)
    assert "held by Pulsar clients" in refusal.text


def test_another_type_is_refused() -> None:
    (refusal,) = decide(replace(situation(subscription("Shared")), type="Exclusive"))
    assert isinstance(refusal, Refuse)
    assert "set subscriptionType to Shared" in refusal.text


@pytest.mark.parametrize(
    ("state", "found"), [(UNKNOWN, Standby), (ALIVE, Refuse), (EXPIRED, Refuse)], ids=["unknown", "alive", "gone"]
)
def test_a_change_of_type_waits_until_live_consumers_are_excluded(state: LeaseState, found: type) -> None:
    """With no live consumer left, the caller changes the type before it asks."""
    looking = replace(situation(subscription("Shared", owned("a", 3)), others={"a": state}), type="Failover")
    (action,) = decide(looking)
    assert isinstance(action, found)


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared"])
@pytest.mark.parametrize("state", [{"held": {0: 4}}, {"committed": read(4, 0, 25)}], ids=["running", "restarted"])
def test_a_reset_cursor_fences_the_query(kind: str, state: dict[str, object]) -> None:
    record = subscription(kind, owned("b", 4), start_epoch=5, start_entry=3)
    (fenced,) = decide(situation(record, **state))
    assert isinstance(fenced, Fenced)
    assert "was reset to 1:3 while this query ran" in fenced.text
    assert "new checkpointLocation" in fenced.text


def test_a_checkpoint_older_than_the_subscription_continues() -> None:
    actions = decide(situation(subscription("Exclusive"), committed=read(0, 0, 25)))
    assert actions == (Take("b", 2, {0: at(25)}),)


# --- Shared and Key_Shared ---

HALF, REST = tuple(range(32)), tuple(range(32, 64))


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_a_consumer_that_joins_waits_until_slots_are_released(kind: str) -> None:
    record = subscription(kind, owned("a", 2, slots=HALF + REST))
    assert decide(situation(record, others={"a": ALIVE})) == (Standby(),)

    a = replace(situation(record, others={"b": UNKNOWN}, held=dict.fromkeys(HALF + REST, 2)), consumer="a")
    a = replace(a, committed=read(2, 0, 25, HALF + REST))
    actions = decide(a)
    assert actions == (Keep(2, dict.fromkeys(HALF, at(25))), Release(3, dict.fromkeys(REST, at(25))))
    record = apply(record, actions)
    assert record.owners == (owned("a", 2, slots=HALF), owned(None, 3, 25, REST))

    actions = decide(situation(record, cursor=25, others={"a": ALIVE}))
    assert actions == (Take("b", 4, dict.fromkeys(REST, at(25))),)
    assert apply(record, actions).owners == (owned("a", 2, slots=HALF), owned("b", 4, 25, REST))


def test_slots_of_a_dead_consumer_are_taken_and_those_of_the_living_are_not() -> None:
    record = subscription("Shared", owned("a", 2, slots=HALF), owned("z", 3, slots=REST))
    (take,) = decide(situation(record, others={"a": ALIVE, "z": EXPIRED}))
    assert take == Take("b", 4, dict.fromkeys(REST, at(10)))
    (take,) = decide(situation(record, others={}))
    assert isinstance(take, Take)
    assert len(take.positions) == 64


def test_lost_slots_are_dropped_and_the_others_read_on() -> None:
    record = subscription("Shared", owned("b", 2, slots=HALF), owned("a", 3, slots=REST))
    actions = decide(situation(record, others={"a": ALIVE}, held=dict.fromkeys(HALF + REST, 2)))
    assert actions == (Keep(2, dict.fromkeys(HALF, at(10))), Lost(REST))
    assert held_after(actions) == dict.fromkeys(HALF, 2)


def test_a_stopping_reader_releases_its_slots_and_the_last_one_the_face() -> None:
    record = subscription("Shared", owned("b", 2, slots=HALF + REST))
    leaving = situation(record, held=dict.fromkeys(HALF + REST, 2), committed=read(2, 0, 25, HALF), stopping=True)
    actions = decide(leaving)
    assert actions == (Release(3, dict.fromkeys(HALF, at(25)) | dict.fromkeys(REST, at(10))), Standby())
    assert apply(record, actions).face is None
    assert decide(replace(leaving, held={})) == (Standby(),), "another process of this consumer may have them"


def test_a_finishing_query_takes_free_slots_and_releases_none() -> None:
    record = subscription("Shared", owned("b", 2, slots=HALF), owned(None, 3, 25, REST))
    finishing = situation(record, 25, others={"a": ALIVE}, held=dict.fromkeys(HALF, 2), finishing=True)
    assert decide(finishing) == (Keep(2, dict.fromkeys(HALF, at(25))), Take("b", 4, dict.fromkeys(REST, at(25))))
    record = subscription("Shared", owned("b", 2, slots=HALF), owned("a", 3, 25, REST))
    assert decide(replace(finishing, record=record)) == (Keep(2, dict.fromkeys(HALF, at(25))),)


# --- committing, planning ---


def test_actions_of_an_older_record_are_not_applied() -> None:
    record = subscription("Exclusive")
    actions = decide(situation(record))
    with pytest.raises(ValueError, match="read the subscription again"):
        apply(apply(record, actions), actions)


def test_fields_that_this_version_does_not_know_survive() -> None:
    record = subscription("Exclusive", future=7)
    assert apply(record, decide(situation(record))).model_extra == {"future": 7}


def test_the_next_batch_reads_every_slot_from_its_position() -> None:
    actions = (Keep(2, {0: at(5), 1: at(5), 2: at(30)}), Take("b", 3, {9: at(0)}), Lost((4,)))
    assert planned(TOPIC, "Shared", actions, at(20)).ranges == (
        SlotRange((0, 1), 2, at(5), at(20)),
        SlotRange((2,), 2, at(30), at(30)),
        SlotRange((9,), 3, at(0), at(20)),
    )
    assert planned(TOPIC, "Failover", (Keep(2, {0: at(5)}),), at(20)) == read(2, 5, 20)
    assert planned(TOPIC, "Failover", (Standby(),), at(20)).ranges == ()


# --- cursors ---


def row(slot: int, epoch: int, n: int, entry: int) -> CursorRow:
    return CursorRow(TOPIC, "s", slot, epoch, n, 1, entry)


def test_the_largest_epoch_and_then_the_largest_n_counts() -> None:
    record = subscription("Shared", owned("a", 4, 10, (0, 1)))
    rows = [row(0, 4, 2, 30), row(0, 4, 1, 20), row(0, 3, 99, 70), row(1, 3, 1, 80)]
    assert current_positions(record, rows)[0] == at(30)
    assert current_positions(record, rows)[1] == at(10), "the start of its epoch"
    assert current_positions(record, rows)[2] == at(0), "the subscription's start"
    assert mark_delete(record, rows) == at(0)


def test_a_reset_forgets_owners_and_rows_of_older_epochs() -> None:
    record = subscription("Exclusive", owned("a", 4, 10), start_epoch=5, start_entry=3)
    assert current_positions(record, [row(0, 4, 1, 30)])[0] == at(3)
    assert next_epoch(record) == 6


rows_of_a_slot = st.builds(row, st.integers(0, 2), st.integers(0, 5), st.integers(0, 5), st.integers(0, 50))


@given(st.lists(rows_of_a_slot, unique_by=lambda r: (r.slot, r.rank)), st.integers(0, 5), st.integers(0, 5))
def test_folded_rows_equal_all_rows(rows: list[CursorRow], epoch: int, start_epoch: int) -> None:
    record = subscription("Shared", owned("a", epoch, 7, (0, 1)), start_epoch=start_epoch)
    folded = Cursors().having(rows)
    for slot in range(3):
        assert current_positions(record, rows)[slot] == current_positions(record, folded.of(TOPIC, "s"))[slot]


def test_only_slots_read_under_the_epoch_held_move_and_only_forward() -> None:
    record = subscription("Shared")
    committed = TopicOffset(TOPIC, (SlotRange((0, 1, 3), 4, at(0), at(20)), SlotRange((2,), 3, at(0), at(20))))
    cursor = {0: at(10), 1: at(20), 2: at(10), 3: at(10), 4: at(10)}
    assert cursor_moves(record, cursor, {0: 4, 1: 4, 2: 4, 4: 4}, committed, n=7) == (row(0, 4, 7, 20),)
