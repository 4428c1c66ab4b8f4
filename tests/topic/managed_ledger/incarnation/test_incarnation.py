"""A broker incarnation's ledgers: opened and closed in groups, numbered upwards, and lost to a takeover."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from pulsar_on_spark.ledger.journal.log import LogRecord
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import IncarnationRecord, LedgerRecord, PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import (
    JournalFencedError,
    JournalUnavailableError,
    MetadataError,
    TopicNotFoundError,
    TopicOwnedElsewhereError,
    TopicTerminatedError,
)
from pulsar_on_spark.model.ids import IncarnationId, LedgerId, PathId, TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.leases import LeaseWatcher
from pulsar_on_spark.topic.maintenance.maintain import heal_paths
from pulsar_on_spark.topic.managed_ledger.incarnation import attached_behind, dead_brokers, incarnation
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import (
    RETRY_AFTER_S,
    DeadBrokers,
    recover_incarnation,
)
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation
from pulsar_on_spark.topic.managed_ledger.incarnation.ledgers import (
    ID_BLOCK,
    ClosedLedger,
    IdBlock,
    LedgerCommit,
    Termination,
    decide,
)
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from tests.kit import messages
from tests.kit.pulsar_entries import ClientMessage, single_entry
from tests.kit.running_incarnation import RunningIncarnation
from tests.kit.waiting import wait_until


@pytest.fixture
def broker(root: Root) -> Iterator[RunningIncarnation]:
    root.create_topic("t")
    with RunningIncarnation(root, lease_duration_s=0.6) as running:
        yield running


def ledgers(root: Root, topic: str = "t") -> list[LedgerRecord]:
    (part,) = messages.target(root, topic).parts
    return root.store.view().all(LedgerRecord, part.topic_id)


def state(root: Root, incarnation: str) -> str:
    found = root.store.view().get(IncarnationRecord, incarnation)
    assert found is not None
    return found.state


def test_a_path_that_is_well_again_is_written_to_again(root: Root, broker: RunningIncarnation):
    def paths() -> list[int]:
        """Of the last fragment that has begun: the one ahead begins with a frame, and goes with a log that ends."""
        found = root.store.view().get(IncarnationRecord, broker.incarnation.id)
        assert found is not None
        return sorted(path for path, _ in [each for each in found.fragments if each.first is not None][-1].copies)

    broker.send("t", [b"a"])
    lost = root.storage_paths(root.store.view())[PathId(1)].directory
    lost.rename(lost.with_name("away"))
    broker.send("t", [b"b"])
    wait_until(lambda: root.store.view().get(PathRecord, "1").state == "read-only")
    assert paths() == [0, 2]
    lost.with_name("away").rename(lost)
    assert heal_paths(root) == (1,)
    wait_until(lambda: (broker.send("t", [b"c"]), paths() == [0, 1, 2])[1])
    broker.stop()
    assert paths() == [0, 1, 2]


def test_a_ledger_is_opened_at_the_first_publish_and_closed_at_the_end(root: Root, broker: RunningIncarnation):
    assert ledgers(root) == []
    broker.send("t", [b"a", b"b"])
    (opened,) = ledgers(root)
    assert (opened.incarnation, opened.closed, opened.entries) == (broker.incarnation.id, False, None)
    broker.stop()
    (closed,) = ledgers(root)
    assert (closed.ledger_id, closed.closed, closed.entries) == (opened.ledger_id, True, 2)
    assert state(root, broker.incarnation.id) == "CLOSED"
    assert not root.broker_leases().read_all()


def test_a_topic_continues_in_a_larger_ledger(root: Root, broker: RunningIncarnation):
    for number in range(3):
        broker.send("t", [b"x"] * (number + 1))
        broker.close_ledger("t")
    found = ledgers(root)
    assert [each.entries for each in found] == [1, 2, 3]
    assert [each.ledger_id for each in found] == sorted({each.ledger_id for each in found})


def test_many_ledgers_are_one_commit(root: Root, broker: RunningIncarnation):
    for number in range(20):
        root.create_topic(f"many-{number}")
    parts = [broker.part(f"many-{number}") for number in range(20)]
    before = root.store.view().version

    async def open_all() -> None:
        await asyncio.gather(*(broker.incarnation.open_ledgers([part]) for part in parts))

    asyncio.run_coroutine_threadsafe(open_all(), broker._loop).result(10)
    assert root.store.view().version - before <= 2, "the first is under way when the others come"
    assert len(broker.incarnation.ledgers) == 20
    assert len({each.ledger_id for each in broker.incarnation.ledgers.values()}) == 20


def test_ids_are_above_whatever_is_in_the_chain(root: Root, broker: RunningIncarnation):
    broker.send("t", [b"a"])
    broker.close_ledger("t")
    root.create_topic("u")
    for _ in range(2):
        messages.write(root, "t", [b"spark"])
        messages.write(root, "u", [b"spark"])
    (attached,) = ledgers(root)[-1:]
    assert attached.ledger_id > broker.incarnation._commits._ids.next, "from behind the broker's block"
    broker.send("t", [b"b"])
    assert ledgers(root)[-1].ledger_id > attached.ledger_id


def test_a_topic_that_another_incarnation_has_open_is_refused(root: Root, broker: RunningIncarnation):
    broker.send("t", [b"a"])
    with RunningIncarnation(root) as other:
        with pytest.raises(TopicOwnedElsewhereError, match=broker.incarnation.id):
            other.send("t", [b"b"])
        recover_incarnation(root, broker.incarnation.id)
        other.send("t", [b"b"])
    assert [each.incarnation for each in ledgers(root)] == [broker.incarnation.id, other.incarnation.id]


class LandsAndFails:
    """A store of which commits are made and reported as failed: reading them back did not work."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def commit(self, decide: Callable[[View], Change | None]) -> View:
        self._store.commit(decide)
        raise MetadataError("The table cannot be read.")


@pytest.fixture
def stray(root: Root, broker: RunningIncarnation) -> LedgerRecord:
    """A ledger of topic t of which the broker does not know that it is open."""
    commits = broker.incarnation._commits
    commits._store = LandsAndFails(root.store)  # type: ignore[assignment]
    with pytest.raises(MetadataError):
        broker.send("t", [b"refused"])
    commits._store = root.store
    (found,) = ledgers(root)
    return found


def test_an_open_that_was_made_but_reported_as_failed_reserves_its_id(
    root: Root, broker: RunningIncarnation, stray: LedgerRecord
):
    root.create_topic("u")
    broker.send("u", [b"u"])
    broker.send("t", [b"t"])
    found = [*ledgers(root, "u"), *ledgers(root)]
    assert len({each.ledger_id for each in found}) == len(found) == 3
    (first, second) = ledgers(root)
    assert (first.ledger_id, first.closed, first.entries) == (stray.ledger_id, True, 0)
    assert not second.closed
    broker.stop()
    seal_closed(root, pytest.fail)
    for topic in ("t", "u"):
        assert messages.values(root, topic) == [topic.encode()], "neither hidden nor somebody else's"


def test_an_open_that_was_made_but_reported_as_failed_hides_nothing(
    root: Root, broker: RunningIncarnation, stray: LedgerRecord
):
    """No client asks for the topic again."""
    messages.write(root, "t", [b"spark"])
    wait_until(lambda: ledgers(root)[0].closed)
    assert (ledgers(root)[0].ledger_id, ledgers(root)[0].entries) == (stray.ledger_id, 0)
    assert messages.values(root, "t") == [b"spark"]


class FailsForNow:
    """A store whose commits are still on their way when they are reported as failed."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def commit(self, decide: Callable[[View], Change | None]) -> View:
        decide(self._store.view())
        raise MetadataError("The store does not answer.")


def test_an_open_that_was_reported_as_failed_cannot_arrive_later(root: Root, broker: RunningIncarnation):
    """Its `seal` key moves, although nothing else happens."""
    commits, seal = broker.incarnation._commits, keys.incarnation_seal(broker.incarnation.id)
    commits._store = FailsForNow(root.store)  # type: ignore[assignment]
    with pytest.raises(MetadataError):
        broker.send("t", [b"refused"])
    before = seal_version(root, seal)
    commits._store = root.store
    wait_until(lambda: seal_version(root, seal) != before, limit_s=20)
    assert not commits.has_strays
    broker.send("t", [b"t"])


def seal_version(root: Root, seal: str) -> int | None:
    root.store.view()
    return root.store.key_version(seal)


@pytest.mark.parametrize("is_under_way", [False, True])
def test_two_openings_of_a_topics_ledger_share_one(root: Root, broker: RunningIncarnation, is_under_way: bool):
    part = broker.part("t")

    async def both() -> None:
        first = asyncio.create_task(broker.incarnation.open_ledgers([part]))
        if is_under_way:
            await asyncio.sleep(0)  # its commit has begun: no request can join it
        await asyncio.gather(first, broker.incarnation.open_ledgers([part]))
        await broker.incarnation.close_ledgers([])

    asyncio.run_coroutine_threadsafe(both(), broker._loop).result(60)
    broker.send("t", [b"a"])
    broker.stop()
    assert [(each.closed, each.entries) for each in ledgers(root)] == [(True, 1)]


def test_a_ledger_is_not_switched_and_opened_in_one_commit(root: Root, monkeypatch: pytest.MonkeyPatch):
    """A topic is unloaded and loaded again while its ledger is switched."""
    monkeypatch.setattr(incarnation, "POLL_S", 3600.0)
    root.create_topic("t")
    with RunningIncarnation(root, lease_duration_s=36_000.0) as broker:
        broker.send("t", [b"a"])
        messages.write(root, "t", [b"spark"])
        part, running = broker.part("t"), broker.incarnation

        async def unload_and_open() -> None:
            running._retire([TopicId(part.topic_id)])
            await running.open_ledgers([part])

        async def both() -> None:
            running._attached_behind.scan_changes(root.store.view(), list(running.ledgers))
            await asyncio.gather(running._switch(time.monotonic()), unload_and_open())

        asyncio.run_coroutine_threadsafe(both(), broker._loop).result(60)
        broker.send("t", [b"b"])
        broker.stop()
    assert [each.entries for each in ledgers(root) if each.incarnation] == [1, 0, 1], "an unneeded ledger is closed"


def test_a_defect_does_not_end_the_looks_at_the_metadata(root: Root, broker: RunningIncarnation, monkeypatch):
    looks = []
    look = broker.incarnation._look

    def defective() -> IncarnationRecord | None:
        looks.append(1)
        if len(looks) == 1:
            raise ValueError("a defect")
        return look()

    monkeypatch.setattr(broker.incarnation, "_look", defective)
    wait_until(lambda: len(looks) > 2)
    broker.send("t", [b"a"])


@pytest.mark.parametrize("turns", range(5))
def test_a_look_during_the_stop_does_not_delay_it(root: Root, monkeypatch: pytest.MonkeyPatch, turns: int):
    monkeypatch.setattr(incarnation, "POLL_S", 3600.0)

    async def look_and_stop(running: incarnation.Incarnation) -> None:
        await asyncio.sleep(0.01)  # it waits for the next look
        running.scan_metadata()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await running.stop()

    with RunningIncarnation(root, lease_duration_s=36_000.0) as broker:
        broker._run(look_and_stop(broker.incarnation))
        assert state(root, broker.incarnation.id) == "CLOSED"


def test_a_deleted_topic_delays_no_other(root: Root, broker: RunningIncarnation):
    root.create_topic("gone")
    part = broker.part("gone")
    root.delete_topic("gone")
    found = asyncio.run_coroutine_threadsafe(
        broker.incarnation.open_ledgers([part, broker.part("t")]), broker._loop
    ).result(10)
    assert isinstance(found[TopicId(part.topic_id)], TopicNotFoundError)
    assert len(ledgers(root)) == 1


def test_an_incarnation_that_was_taken_over_opens_and_closes_nothing(root: Root, broker: RunningIncarnation):
    broker.send("t", [b"a"])
    recover_incarnation(root, broker.incarnation.id)
    root.create_topic("u")
    with pytest.raises(JournalFencedError, match=r"taken over|is over"):
        broker.send("u", [b"b"])
    with pytest.raises(JournalFencedError, match=r"taken over|is over"):
        broker.close_ledger("t")
    assert [each.closed for each in ledgers(root)] == [False]


def test_an_idle_incarnation_notices_its_takeover(root: Root, broker: RunningIncarnation):
    broker.send("t", [b"a"])
    recover_incarnation(root, broker.incarnation.id)
    end_s = time.monotonic() + 60
    while broker.over is None and time.monotonic() < end_s:
        time.sleep(0.02)
    assert broker.over is not None
    assert broker.incarnation.ledgers == {}


def test_only_a_lease_that_has_run_out_is_a_reason(root: Root, broker: RunningIncarnation):
    broker.send("t", [b"a"])
    watcher = DeadBrokers(root)
    for _ in range(12):
        assert not watcher.recover_dead_logs(root.store.view(), [broker.incarnation.id]), "it is renewed"
        time.sleep(0.1)
    broker.kill()
    end_s = time.monotonic() + 60
    while not watcher.recover_dead_logs(root.store.view(), [broker.incarnation.id]):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert state(root, broker.incarnation.id) == "CLOSED"


def test_a_recovery_that_fails_by_a_defect_is_logged_and_tried_again_after_a_pause(
    root: Root, broker: RunningIncarnation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker.kill()
    now_s, fail = 0.0, AssertionError("a defect")
    watcher = DeadBrokers(root, lambda: now_s)
    dead = [broker.incarnation.id]

    def due() -> list[IncarnationId]:
        return watcher.dead_logs(root.store.view(), dead, known_dead=dead)

    def recover(*_: object) -> LogRecord:
        raise fail

    monkeypatch.setattr(dead_brokers, "recover_incarnation", recover)
    assert due() == dead
    assert not watcher.recover_log(broker.incarnation.id)
    assert "AssertionError: a defect" in caplog.text
    assert due() == []
    now_s += 2 * RETRY_AFTER_S
    assert due() == dead


def test_a_broker_that_cannot_look_at_the_metadata_lets_its_lease_run_out(root: Root, broker: RunningIncarnation):
    log = root.path / "metadata" / "main" / "_delta_log"
    broker.send("t", [b"a"])
    watcher = LeaseWatcher(root.broker_leases())
    log.rename(log.with_name("away"))
    log.touch()  # a commit under way would create the directory again
    time.sleep(0.8)
    wait_until(lambda: (watcher.observe_leases(), watcher.lease_state(broker.incarnation.id) is LeaseState.EXPIRED)[1])
    log.unlink()
    log.with_name("away").rename(log)
    assert broker._thread.is_alive()


def test_the_broker_soon_switches_to_a_ledger_after_sparks(
    root: Root, broker: RunningIncarnation, monkeypatch: pytest.MonkeyPatch
):
    """Each write in its turn, by what a topic has saved of its ration."""
    monkeypatch.setattr(attached_behind, "SWITCH_EVERY_S", 3600.0)
    for number in range(4):
        broker.send("t", [b"a"])
        messages.write(root, "t", [b"%d" % number])
        wait_until(lambda: len(ledgers(root)) == 2 * number + 3 and ledgers(root)[-3].closed)  # noqa: B023


def before_commits_of_ledgers(monkeypatch: pytest.MonkeyPatch, running: Incarnation, call: Callable[[], None]) -> None:
    commit = running._commits._commit

    def called_first(requests: Any) -> LedgerCommit:
        call()
        return commit(requests)

    monkeypatch.setattr(running._commits, "_commit", called_first)


def test_the_lease_is_renewed_while_commits_of_ledgers_take_longer(root: Root, monkeypatch: pytest.MonkeyPatch):
    """After such a commit, polls find the next ledger that Spark attaches."""
    root.create_topic("t")
    with RunningIncarnation(root, lease_duration_s=2.0) as broker:
        broker.send("t", [b"a"])
        running, began, go_on = broker.incarnation, threading.Event(), threading.Event()

        def wait() -> None:
            began.set()
            go_on.wait(60)

        before_commits_of_ledgers(monkeypatch, running, wait)
        messages.write(root, "t", [b"spark"])
        assert began.wait(60), "the topic switches to a ledger after Spark's"
        time.sleep(6)
        pause_s = running.lease_pause_s(time.monotonic())
        go_on.set()
        assert pause_s < 2
        wait_until(lambda: [each.incarnation is None for each in ledgers(root)] == [False, True, False])
        broker.send("t", [b"b"])
        messages.write(root, "t", [b"more"])
        wait_until(lambda: [each.incarnation is None for each in ledgers(root)] == [False, True, False, True, False])


def test_the_lease_is_renewed_while_a_stop_takes_longer(root: Root, monkeypatch: pytest.MonkeyPatch):
    root.create_topic("t")
    with RunningIncarnation(root, lease_duration_s=1.0) as broker:
        broker.send("t", [b"a"])
        running, pauses_s = broker.incarnation, []

        def wait() -> None:
            time.sleep(4)
            pauses_s.append(running.lease_pause_s(time.monotonic()))

        before_commits_of_ledgers(monkeypatch, running, wait)
        broker.stop()
        assert max(pauses_s) < 1
        assert [each.closed for each in ledgers(root)] == [True]
        assert state(root, running.id) == "CLOSED"


def test_a_former_ledger_is_closed_once_it_is_acknowledged(root: Root, monkeypatch: pytest.MonkeyPatch):
    """The close shows the ledger that Spark attached, before the next scan of the metadata."""
    monkeypatch.setattr(incarnation, "POLL_S", 3600.0)
    root.create_topic("t")
    with RunningIncarnation(root, lease_duration_s=36_000.0) as broker:
        broker.send("t", [b"first"])
        topic_id, running = TopicId(broker.part("t").topic_id), broker.incarnation

        async def publish_on() -> None:
            while not ledgers(root)[0].closed:
                running.append(topic_id, 1, 1, [single_entry(ClientMessage(b"next"))])
                await asyncio.sleep(0.001)

        messages.write(root, "t", [b"spark"])
        publishing = asyncio.run_coroutine_threadsafe(publish_on(), broker._loop)
        broker._loop.call_soon_threadsafe(running.scan_metadata)
        publishing.result(60)
        assert [each.incarnation is not None for each in ledgers(root)] == [True, False, True]


def test_switches_are_rationed(root: Root, broker: RunningIncarnation, monkeypatch: pytest.MonkeyPatch):
    """The second write of Spark waits behind the new ledger; both are in order once the broker has moved on."""
    monkeypatch.setattr(attached_behind, "SWITCHES_SAVED", 1)
    broker.send("t", [b"a"])
    messages.write(root, "t", [b"1"])
    wait_until(lambda: len(ledgers(root)) == 3 and ledgers(root)[0].closed)
    broker.send("t", [b"b"])
    messages.write(root, "t", [b"2"])
    time.sleep(2.5)
    assert len(ledgers(root)) == 4, "not within ten seconds"
    kinds = [each.incarnation is not None for each in ledgers(root)]
    assert kinds == [True, False, True, False]
    broker.stop()
    assert [each.entries for each in ledgers(root) if each.incarnation] == [1, 1]


def test_an_incarnation_without_room_appends_nothing(root: Root, broker: RunningIncarnation):
    broker.send("t", [b"a"])
    part = broker.part("t")
    ledger = broker.incarnation.ledgers[TopicId(part.topic_id)]

    async def append() -> None:
        broker.incarnation.journal.can_add = False
        broker.incarnation.append(TopicId(part.topic_id), 1, 1, [b"refused"])

    with pytest.raises(JournalUnavailableError):
        asyncio.run_coroutine_threadsafe(append(), broker._loop).result(10)
    assert (ledger.next, ledger.outstanding) == (1, 0)


# -- what one commit does ----------------------------------------------------------------------------------------------


@pytest.fixture
def part(root: Root) -> TopicPart:
    root.create_topic("t")
    (part,) = messages.target(root, "t").parts
    incarnation = IncarnationRecord(incarnation="i", state="OPEN")
    root.store.commit(lambda view: Change(puts=[incarnation], keys={keys.incarnation_log("i"): None}))
    return part


ME = IncarnationId("i")


def test_every_commit_carries_the_seal_key_and_the_topics(root: Root, part: TopicPart):
    found = decide(root.store.view(), ME, [part], [], IdBlock())
    assert found.change is not None
    assert found.change.keys == {keys.incarnation_seal("i"): None, keys.topic(part.name): None, keys.IDS: None}
    assert found.ids == IdBlock(2, 1 + ID_BLOCK)
    root.store.commit(lambda view: found.change)
    again = decide(root.store.view(), ME, [part], [ClosedLedger(part, LedgerId(1), 7)], found.ids)
    assert again.change is not None
    assert again.change.keys == {keys.incarnation_seal("i"): None, keys.topic(part.name): None}
    assert again.opened == {TopicId(part.topic_id): LedgerId(2)}
    assert again.ids == IdBlock(3, 1 + ID_BLOCK)


def test_a_block_below_the_chain_is_dropped(root: Root, part: TopicPart):
    messages.write(root, "t", [b"spark"])
    (attached,) = ledgers(root)
    found = decide(root.store.view(), ME, [part], [], IdBlock(attached.ledger_id, attached.ledger_id + 5))
    assert found.opened[TopicId(part.topic_id)] > attached.ledger_id
    assert found.change is not None
    assert keys.IDS in found.change.keys


def test_a_close_without_ledgers_makes_no_commit(root: Root, part: TopicPart):
    gone = TopicPart(part.name, "f" * 32, -1)
    found = decide(root.store.view(), ME, [gone], [ClosedLedger(part, LedgerId(99), 1)], IdBlock())
    assert found.change is None
    assert isinstance(found.refused[TopicId(gone.topic_id)], TopicNotFoundError)


def test_a_termination_and_the_close_of_the_ledger_are_one_commit(root: Root, part: TopicPart):
    topic_id = TopicId(part.topic_id)
    opened = decide(root.store.view(), ME, [part], [], IdBlock())
    root.store.commit(lambda view: opened.change)
    closed = ClosedLedger(part, LedgerId(1), 7)
    found = decide(root.store.view(), ME, [part], [closed], opened.ids, [Termination(part, {})])
    assert found.terminated == {topic_id: (1, 6)}
    assert isinstance(found.refused[topic_id], TopicTerminatedError), "nothing is opened beside it"
    root.store.commit(lambda view: found.change)
    (ledger,) = ledgers(root)
    assert (ledger.closed, ledger.entries) == (True, 7)
    again = decide(root.store.view(), ME, [part], [closed], opened.ids, [Termination(part, {})])
    assert again.terminated == {topic_id: (1, 6)}
    refused = decide(root.store.view(), ME, [part], [], opened.ids).refused[topic_id]
    assert isinstance(refused, TopicTerminatedError)


def test_a_ledger_that_two_ask_to_close_is_closed_once(root: Root, part: TopicPart):
    """After a switch the poll closes the old ledger, and so may a termination or an unloading in the same commit."""
    opened = decide(root.store.view(), ME, [part], [], IdBlock())
    root.store.commit(lambda view: opened.change)
    closed = ClosedLedger(part, LedgerId(1), 7)
    found = decide(root.store.view(), ME, [], [closed, closed], opened.ids)
    root.store.commit(lambda view: found.change)
    assert [(ledger.closed, ledger.entries) for ledger in ledgers(root)] == [(True, 7)]


def test_the_last_message_of_a_terminated_topic(root: Root, part: TopicPart):
    topic_id = TopicId(part.topic_id)

    def last(*closes: ClosedLedger) -> tuple[int, int]:
        found = decide(root.store.view(), ME, [], closes, IdBlock(), [Termination(part, {})])
        return found.terminated[topic_id]

    assert last() == (-1, -1)
    root.store.commit(lambda view: decide(view, ME, [part], [], IdBlock()).change)
    still_open = decide(root.store.view(), ME, [], [], IdBlock(), [Termination(part, {})]).refused[topic_id]
    assert isinstance(still_open, TopicOwnedElsewhereError)
    assert last(ClosedLedger(part, LedgerId(1), 0)) == (-1, -1), "an empty ledger has no message"
    messages.write(root, "t", [b"behind it"])
    attached = ledgers(root)[-1].ledger_id
    assert last(ClosedLedger(part, LedgerId(1), 3)) == (attached, 0), "what Spark attached counts, too"


def test_the_end_of_a_ledger_closed_by_a_recovery_counts_before_its_row_exists(root: Root, part: TopicPart):
    topic_id = TopicId(part.topic_id)
    forced = LedgerRecord(topic_id=part.topic_id, ledger_id=4, incarnation="dead", created_at=datetime.now(UTC))
    dead = IncarnationRecord(incarnation="dead", state="CLOSED")
    root.store.commit(lambda view: Change(puts=[forced, dead], keys={keys.topic(part.name): None}))
    found = decide(root.store.view(), ME, [], [], IdBlock(), [Termination(part, {4: 9})])
    assert found.terminated == {topic_id: (4, 8)}


@pytest.mark.parametrize("now", ["IN_RECOVERY", "CLOSED"])
def test_no_commit_is_made_for_an_ended_incarnation(root: Root, part: TopicPart, now: str):
    record = IncarnationRecord.model_validate({"incarnation": "i", "state": now})
    root.store.commit(lambda view: Change(puts=[record], keys={keys.incarnation_log("i"): None}))
    with pytest.raises(JournalFencedError, match="taken over"):
        decide(root.store.view(), ME, [part], [], IdBlock())
