"""Takeover of several dead brokers by one, and what is believed afterwards."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from pulsar_on_spark.broker.broker import Broker
from pulsar_on_spark.broker.cluster.takeover import RECOVERED_AT_ONCE, Takeover
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.ledger.journal.log import LogRecord
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.bundles import is_over
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.incarnation import dead_brokers
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import DeadBrokers, recover_incarnation
from tests.kit.running_incarnation import RunningIncarnation
from tests.kit.waiting import until

DEAD = RECOVERED_AT_ONCE + 2


def test_the_last_living_broker_does_not_believe_itself_dead(memory_path: Path) -> None:
    """It stops looking at leases when all others are CLOSED, and what it saw of its own lease grows old."""
    root = Root.create(memory_path / "root")
    now_s = 0.0
    looks = DeadBrokers(root, lambda: now_s)
    with RunningIncarnation(root) as own, RunningIncarnation(root) as other:
        ids = own.incarnation.id, other.incarnation.id
        _stop_renewals(own, other)
        for _ in range(3):
            assert looks.dead_logs(root.store.view(), [ids[1]]) == []
            now_s += 4.0
        assert looks.dead_logs(root.store.view(), [ids[1]]) == [ids[1]]
        assert looks.looks_dead(ids[1])
        recover_incarnation(root, ids[1])
        for _ in range(5):
            assert looks.dead_logs(root.store.view(), [ids[1]]) == []
            assert not any(looks.looks_dead(each) for each in ids)
            now_s += 20.0


def test_a_broker_may_be_dead_as_soon_as_it_is_late_with_its_lease(memory_path: Path) -> None:
    root = Root.create(memory_path / "root")
    now_s = 0.0
    looks = DeadBrokers(root, lambda: now_s)
    with RunningIncarnation(root, lease_duration_s=6.0) as other:
        of_other = other.incarnation.id
        _stop_renewals(other)

        def look() -> tuple[bool, bool]:
            looks.dead_logs(root.store.view(), [of_other])
            return looks.may_be_dead(of_other), looks.looks_dead(of_other)

        assert look() == (False, False)
        now_s += 2.9
        assert look() == (False, False)
        now_s += 1.0
        assert look() == (True, False)
        now_s += 2.2
        assert look() == (True, True)
        recover_incarnation(root, of_other)
        assert look() == (False, False)


def test_a_wait_before_a_retry_goes_on_when_leases_are_forgotten(memory_path: Path) -> None:
    """Otherwise a broker that is slow every few seconds forgets the leases each time, and never recovers a journal."""
    root = Root.create(memory_path / "root")
    now_s = 0.0
    looks = DeadBrokers(root, lambda: now_s)
    with RunningIncarnation(root, lease_duration_s=6.0) as other:
        of_other = other.incarnation.id
        _stop_renewals(other)
        with_recovery = _begin_recovery(root, of_other)
        assert looks.dead_logs(with_recovery, [of_other]) == []
        now_s += 6.1
        assert looks.dead_logs(with_recovery, [of_other]) == []
        assert looks.looks_dead(of_other)
        now_s += 2.0
        looks.forget_leases()
        assert looks.dead_logs(with_recovery, [of_other]) == []
        assert not looks.looks_dead(of_other)
        now_s += 6.1
        assert looks.dead_logs(with_recovery, [of_other]) == [of_other]


def _stop_renewals(*incarnations: RunningIncarnation) -> None:
    """Leave the leases as they are: time passes by the test's clock only."""
    for each in incarnations:
        each.kill()


def _begin_recovery(root: RootHandle, incarnation: IncarnationId) -> View:
    """Leave an incarnation IN_RECOVERY, as by a process that ended during its recovery."""

    def decide(view: View) -> Change:
        record = view.get(IncarnationRecord, incarnation)
        assert record is not None
        began = record.model_copy(update={"state": "IN_RECOVERY"})
        return Change(puts=[began], keys={keys.incarnation_log(incarnation): None})

    return root.store.commit(decide)


def test_a_deregistration_that_fails_delays_no_recovery(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root.create(memory_path / "root")
    with RunningIncarnation(root, lease_duration_s=0.5) as other:
        other.kill()
    tried = 0

    def clean_up(*_: object) -> None:
        nonlocal tried
        tried += 1
        raise MetadataError("the metadata cannot be written now")

    def is_recovered() -> bool:
        return is_over(root.store.view(), other.incarnation.id)

    monkeypatch.setattr(Takeover, "_clean_up", clean_up)

    async def go() -> None:
        broker = await Broker.start(memory_path / "root", BrokerSettings(broker_service_port=0, web_service_port=0))
        try:
            await until(is_recovered)
        finally:
            await broker.stop()

    asyncio.run(go())
    assert tried > 0


def test_a_journal_that_takes_long_to_recover_delays_no_other(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root.create(memory_path / "root")
    with ExitStack() as stack:
        dead = [stack.enter_context(RunningIncarnation(root, lease_duration_s=0.5)) for _ in range(DEAD)]
        for each in dead:
            each.kill()
        slow, *others = (each.incarnation.id for each in dead)
    running, most = 0, 0
    counting, go_on = threading.Lock(), threading.Event()

    def recover(handle: RootHandle, incarnation: IncarnationId) -> LogRecord:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
        if incarnation == slow:
            go_on.wait(60)
        try:
            return recover_incarnation(handle, incarnation)
        finally:
            with counting:
                running -= 1

    def are_closed(incarnations: list[IncarnationId]) -> bool:
        view = root.store.view()
        return all(is_over(view, incarnation) for incarnation in incarnations)

    monkeypatch.setattr(dead_brokers, "recover_incarnation", recover)

    async def go() -> None:
        broker = await Broker.start(memory_path / "root", BrokerSettings(broker_service_port=0, web_service_port=0))
        try:
            await until(lambda: are_closed(others), "the others are closed while one is not")
            assert not are_closed([slow])
            go_on.set()
            await until(lambda: are_closed([slow]))
        finally:
            go_on.set()
            await broker.stop()

    asyncio.run(go())
    assert 2 <= most <= RECOVERED_AT_ONCE
