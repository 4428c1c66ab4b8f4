"""Access modes against Pulsar's rules, case by case, and their invariants under any order of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pulsar_on_spark.broker.producing.producers import (
    AccessMode,
    Close,
    CommitEpoch,
    Effect,
    ProducerInfo,
    ProducerNames,
    Producers,
    Queued,
    Ready,
    Refused,
)
from pulsar_on_spark.broker.producing.replicated import Replication

SHARED, EXCLUSIVE, WAIT, FENCING = AccessMode
TOPIC = "persistent://public/default/t"


def producer(name: str, mode: AccessMode = SHARED, **given: object) -> ProducerInfo:
    fields: dict[str, object] = {"connection": "c1", "producer_id": sum(name.encode()), "access_mode": mode} | given
    return ProducerInfo(name=name, **fields)  # type: ignore[arg-type]


def make_exclusive(core: Producers, info: ProducerInfo) -> None:
    *_, commit = core.add(info)
    assert isinstance(commit, CommitEpoch)
    assert core.epoch_committed() == [Ready(info, commit.epoch)]


def errors(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(effect.producer.name, effect.error) for effect in effects if isinstance(effect, Refused)]


def test_shared_producers_are_admitted_together() -> None:
    core = Producers(TOPIC, topic_epoch=4)
    one, two = producer("one"), producer("two")
    assert core.add(one) == [Ready(one, None)]
    assert core.add(two) == [Ready(two, None)]
    assert list(core.connected) == [one, two]


def test_an_exclusive_producer_keeps_all_others_out() -> None:
    core = Producers(TOPIC)
    make_exclusive(core, producer("owner", EXCLUSIVE))
    assert errors(core.add(producer("a"))) == [("a", "ProducerBusy")]
    assert errors(core.add(producer("b", EXCLUSIVE))) == [("b", "ProducerFenced")]
    assert core.topic_epoch == 0


def test_exclusive_beside_shared_is_fenced() -> None:
    core = Producers(TOPIC)
    core.add(producer("shared"))
    assert errors(core.add(producer("x", EXCLUSIVE))) == [("x", "ProducerFenced")]


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
@pytest.mark.parametrize("epoch", [5, 2**63, 2**64 - 1])
def test_an_epoch_above_the_topics_is_fenced_and_never_stored(mode: AccessMode, epoch: int) -> None:
    core = Producers(TOPIC, topic_epoch=4)
    assert errors(core.add(producer("thief", mode, topic_epoch=epoch))) == [("thief", "ProducerFenced")]
    assert core.is_empty
    assert core.add(producer("next", EXCLUSIVE)) == [CommitEpoch(5)]


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
def test_a_topic_without_an_epoch_takes_a_producer_with_one_as_new(mode: AccessMode) -> None:
    assert Producers(TOPIC).add(producer("old", mode, topic_epoch=2**64 - 1)) == [CommitEpoch(0)]


@pytest.mark.parametrize("stored", [2**63 - 1, 2**64 - 1])
def test_the_epoch_after_the_last_one_is_the_first(stored: int) -> None:
    assert Producers(TOPIC, topic_epoch=stored).add(producer("next", EXCLUSIVE)) == [CommitEpoch(0)]


def test_a_producer_gets_its_epoch_only_when_it_is_durable() -> None:
    core = Producers(TOPIC, topic_epoch=6)
    first = producer("first", EXCLUSIVE)
    assert core.add(first) == [CommitEpoch(7)]
    assert core.topic_epoch == 6
    assert list(core.connected) == []
    assert errors(core.add(producer("s"))) == [("s", "ProducerBusy")]
    assert core.epoch_committed() == [Ready(first, 7)]


def test_an_epoch_that_cannot_be_committed_refuses_only_its_producer() -> None:
    core = Producers(TOPIC)
    core.add(producer("first", EXCLUSIVE))
    second = producer("second", WAIT)
    assert core.add(second) == [Queued(second)]
    effects = core.epoch_not_committed("The disk is full.")
    assert errors(effects) == [("first", "PersistenceError")]
    assert effects[1:] == [CommitEpoch(0)]
    assert core.epoch_committed() == [Ready(second, 0)]


def test_waiting_producers_get_their_turn_in_order_when_no_other_is_left() -> None:
    core = Producers(TOPIC)
    shared = [producer("s1"), producer("s2")]
    for info in shared:
        core.add(info)
    first, second = producer("w1", WAIT), producer("w2", WAIT)
    assert core.add(first) == [Queued(first)]
    assert core.add(second) == [Queued(second)]
    assert errors(core.add(producer("s3"))) == [("s3", "ProducerBusy")], "or the waiting would starve"
    assert core.remove(shared[0]) == []
    assert core.remove(shared[1]) == [CommitEpoch(0)]
    assert core.epoch_committed() == [Ready(first, 0)]
    assert core.remove(first) == [CommitEpoch(1)]
    assert core.epoch_committed() == [Ready(second, 1)]


def test_fencing_closes_all_others_and_fails_the_waiting() -> None:
    core = Producers(TOPIC)
    make_exclusive(core, owner := producer("owner", EXCLUSIVE))
    core.add(producer("waiting", WAIT))
    new = producer("new", FENCING)
    effects = core.add(new)
    assert errors(effects) == [("waiting", "ProducerFenced")]
    assert effects[1:] == [Close(owner, notify=True), CommitEpoch(1)]
    assert core.epoch_committed() == [Ready(new, 1)]
    assert core.remove(owner) == [], "its connection says so later: the new one stays"
    assert list(core.connected) == [new]


def test_fencing_a_producer_during_its_epochs_commit_takes_the_next_epoch() -> None:
    core = Producers(TOPIC)
    core.add(producer("first", EXCLUSIVE))
    second = producer("second", FENCING)
    assert errors(core.add(second)) == [("first", "ProducerFenced")]
    assert core.epoch_committed() == [CommitEpoch(1)], "epoch 0 was committed for no producer"
    assert core.epoch_committed() == [Ready(second, 1)]


def test_a_producer_that_returns_with_the_current_epoch_keeps_it() -> None:
    core = Producers(TOPIC)
    make_exclusive(core, owner := producer("owner", EXCLUSIVE))
    core.remove(owner)
    back = producer("owner", EXCLUSIVE, topic_epoch=0, epoch=1)
    assert core.add(back) == [Ready(back, 0)]


def test_a_fencing_producer_is_fenced_if_another_epoch_is_committed_before_its_turn() -> None:
    core = Producers(TOPIC)
    core.add(producer("first", EXCLUSIVE))
    assert errors(core.add(producer("second", FENCING, topic_epoch=3))) == [("first", "ProducerFenced")]
    assert errors(core.epoch_committed()) == [("second", "ProducerFenced")], "epoch 0 was committed, and it has 3"
    assert core.is_empty


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
def test_a_producer_that_returns_with_an_older_epoch_is_fenced_and_closes_no_other(mode: AccessMode) -> None:
    core = Producers(TOPIC, topic_epoch=5)
    make_exclusive(core, owner := producer("owner", EXCLUSIVE))
    assert errors(core.add(producer("late", mode, topic_epoch=5))) == [("late", "ProducerFenced")]
    assert list(core.connected) == [owner]


def test_a_waiting_producer_with_an_outdated_epoch_is_fenced_at_its_turn() -> None:
    core = Producers(TOPIC, topic_epoch=1)
    core.add(shared := producer("shared"))
    core.add(producer("next", WAIT))
    core.add(late := producer("late", WAIT, topic_epoch=1))
    core.remove(shared)
    *_, (ready,) = [core.epoch_committed()]
    assert isinstance(ready, Ready)
    assert errors(core.remove(ready.producer)) == [(late.name, "ProducerFenced")]
    assert core.is_empty


def test_a_name_belongs_to_one_producer() -> None:
    core = Producers(TOPIC)
    core.add(first := producer("x"))
    (refused,) = core.add(producer("x", connection="c2", epoch=9))
    assert isinstance(refused, Refused)
    assert (refused.error, refused.holder) == ("ProducerBusy", first)
    assert core.remove(first) == []
    again = producer("x", connection="c2", epoch=9)
    assert core.add(again) == [Ready(again, None)], "the first one's connection was dead"


@pytest.mark.parametrize(
    ("changed", "succeeds"),
    [
        ({"epoch": 2}, True),
        ({"epoch": 1}, False),
        ({"epoch": 2, "connection": "c2"}, False),
        ({"epoch": 2, "producer_id": 8}, False),
        ({"epoch": 2, "connection": "c2", "is_generated_name": True}, False),
    ],
)
def test_successors_of_a_given_name(changed: dict[str, object], succeeds: bool) -> None:
    old = producer("x", producer_id=7, epoch=1)
    new = producer("x", **({"producer_id": 7} | changed))
    core = Producers(TOPIC)
    core.add(old)
    effects = core.add(new)
    assert effects == [Close(old, notify=False), Ready(new, None)] if succeeds else bool(errors(effects))


def test_a_replicator_may_encrypt_without_announcing_it() -> None:
    """A replicator's messages are encrypted or not as their first producers sent them."""
    assert not producer("p").may_encrypt
    assert producer("p", encrypts=True).may_encrypt
    assert producer("r", replication=Replication.BY_POSITION).may_encrypt


def test_a_generated_name_may_return_on_another_connection() -> None:
    core = Producers(TOPIC)
    core.add(old := producer("standalone-1-1", is_generated_name=True, epoch=0))
    new = producer("standalone-1-1", connection="c2", producer_id=3, is_generated_name=True, epoch=1)
    assert core.add(new) == [Close(old, notify=False), Ready(new, None)]
    assert core.remove(old) == []
    assert list(core.connected) == [new]


def test_an_exclusive_producer_that_reconnects_precedes_waiting_ones() -> None:
    core = Producers(TOPIC)
    make_exclusive(core, old := producer("standalone-1-1", EXCLUSIVE, is_generated_name=True))
    core.add(producer("waiting", WAIT))
    new = producer("standalone-1-1", EXCLUSIVE, is_generated_name=True, connection="c2", epoch=1, topic_epoch=0)
    assert core.add(new) == [Close(old, notify=False), Ready(new, 0)]


def test_a_waiting_producer_keeps_its_place_in_the_queue() -> None:
    core = Producers(TOPIC)
    core.add(shared := producer("shared"))
    core.add(old := producer("w", WAIT, producer_id=1))
    core.add(producer("behind", WAIT))
    new = producer("w", WAIT, producer_id=1, epoch=1)
    assert core.add(new) == [Close(old, notify=False), Queued(new)]
    core.remove(shared)
    assert core.epoch_committed() == [Ready(new, 0)]


def test_the_limit_counts_waiting_producers() -> None:
    core = Producers(TOPIC, max_producers=2)
    core.add(producer("a"))
    core.add(producer("b", WAIT))
    assert errors(core.add(producer("c", WAIT))) == [("c", "ProducerBusy")]


def test_a_changed_limit_applies_to_new_producers() -> None:
    core = Producers(TOPIC, max_producers=1)
    core.add(producer("one"))
    core.set_max_producers(2)
    assert core.add(producer("two")) == [Ready(producer("two"), None)]
    core.set_max_producers(1)
    assert errors(core.add(producer("three"))) == [("three", "ProducerBusy")]
    assert [info.name for info in core.connected] == ["one", "two"]
    core.set_max_producers(0)
    assert core.add(producer("three")) == [Ready(producer("three"), None)]


def test_a_replicator_is_admitted_beside_all_modes_if_its_name_is_free() -> None:
    core = Producers(TOPIC, max_producers=1)
    remote = producer("pulsar.repl.peer-->here", replication=Replication.BY_POSITION)
    make_exclusive(core, owner := producer("owner", EXCLUSIVE))
    assert core.add(remote) == [Ready(remote, None)]
    other = producer(remote.name, connection="c2", replication=Replication.BY_POSITION)
    (refused,) = core.add(other)
    assert isinstance(refused, Refused)
    assert (refused.error, refused.holder) == ("ProducerBusy", remote)
    again = producer(remote.name, epoch=1, replication=Replication.BY_POSITION)
    assert core.add(again) == [Close(remote, notify=False), Ready(again, None)]
    new = producer("new", FENCING)
    assert core.add(new) == [Close(owner, notify=True), CommitEpoch(1)], "it is not fenced"
    assert core.epoch_committed() == [Ready(new, 1)]
    core.remove(new)
    assert list(core.connected) == [again]
    assert not core.is_empty
    make_exclusive(core, producer("next", EXCLUSIVE))
    core.remove(again)
    assert [info.name for info in core.connected] == ["next"]


def test_generated_names_contain_the_cluster_and_the_incarnation() -> None:
    one, two = ProducerNames("standalone", "a" * 32), ProducerNames("standalone", "b" * 32)
    made = [names.next_name() for names in (one, two) for _ in range(3)]
    assert len(set(made)) == 6
    assert made[0] == f"standalone-{'a' * 16}-1"


class ProducersMachine(RuleBasedStateMachine):
    """Clients connect, leave and reconnect, and commits succeed or fail, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Producers(TOPIC)
        self.durable: int | None = None
        self.committing: int | None = None
        self.ready: dict[ProducerInfo, int | None] = {}
        self.queued: set[ProducerInfo] = set()
        self.asked: set[ProducerInfo] = set()
        self.owner_of: dict[int, str] = {}
        self.attempts: dict[str, int] = {}

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, CommitEpoch):
                assert self.committing is None, "one commit at a time"
                assert self.durable is None or effect.epoch > self.durable
                self.committing = effect.epoch
                continue
            assert effect.producer in self.asked | self.queued | set(self.ready)
            if isinstance(effect, Queued):
                self.asked.discard(effect.producer)
                self.queued.add(effect.producer)
                continue
            self.queued.discard(effect.producer)
            self.asked.discard(effect.producer)
            if isinstance(effect, Ready):
                self.become_ready(effect)
            else:
                self.ready.pop(effect.producer, None)

    def become_ready(self, effect: Ready) -> None:
        info, epoch = effect.producer, effect.topic_epoch
        if info.access_mode is SHARED:
            assert epoch is None
            assert all(info.access_mode is SHARED for info in self.ready)
        else:
            assert not self.ready, "alone"
            assert epoch == self.durable, "no epoch before it is durable, no older one"
            assert epoch is not None
            assert self.owner_of.setdefault(epoch, info.name) == info.name
        self.ready[info] = epoch

    @rule(
        name=st.sampled_from(["a", "b", "c", "d"]),
        mode=st.sampled_from(AccessMode),
        connection=st.integers(1, 2),
        generated=st.booleans(),
        age=st.sampled_from([None, 0, 1]),
    )
    def add(self, name: str, mode: AccessMode, connection: int, generated: bool, age: int | None) -> None:
        self.attempts[name] = attempt = self.attempts.get(name, 0) + 1
        epoch = None
        if age is not None and self.durable is not None and self.owner_of.get(self.durable - age) == name:
            epoch = self.durable - age
        info = ProducerInfo(connection, ord(name), name, generated, attempt, mode, epoch)
        self.asked.add(info)
        self.apply(self.core.add(info))

    @precondition(lambda self: self.ready or self.queued or self.asked)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        known = sorted({*self.ready, *self.queued, *self.asked}, key=lambda info: (info.name, info.epoch))
        info = data.draw(st.sampled_from(known))
        self.ready.pop(info, None)
        self.queued.discard(info)
        self.asked.discard(info)
        self.apply(self.core.remove(info))

    @precondition(lambda self: self.committing is not None)
    @rule(well=st.booleans())
    def commit_ends(self, well: bool) -> None:
        epoch, self.committing = self.committing, None
        if well:
            self.durable = epoch
            self.apply(self.core.epoch_committed())
        else:
            self.apply(self.core.epoch_not_committed("The metadata cannot be written."))

    @invariant()
    def agree(self) -> None:
        assert set(self.core.connected) == set(self.ready)
        assert set(self.core.waiting) <= self.queued
        assert self.core.topic_epoch == self.durable
        names = [info.name for info in {*self.ready, *self.queued, *self.asked}]
        assert len(names) == len(set(names)), "a name has one producer"

    @invariant()
    def no_producer_waits_without_a_reason(self) -> None:
        if self.committing is None:
            assert not self.asked, "every producer has its answer"
            assert not self.queued or self.ready

    def teardown(self) -> None:
        for _ in range(len(self.ready) + len(self.queued) + len(self.asked) + 1):
            while self.committing is not None:
                self.commit_ends(True)
            for info in list(self.ready):
                self.ready.pop(info)
                self.apply(self.core.remove(info))
        assert self.core.is_empty, "every producer gets its turn"


@pytest.mark.parametrize("examples", [75, pytest.param(400, marks=pytest.mark.long)])
def test_producers_keep_their_promises_in_any_order_of_steps(examples: int) -> None:
    run_state_machine_as_test(ProducersMachine, settings=settings(max_examples=examples, stateful_step_count=40))
