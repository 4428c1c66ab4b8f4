"""Retention: the front of a chain is deleted once unneeded and beyond its limits; readers see no difference."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.cursors import WHOLE, CursorRow
from pulsar_on_spark.metadata.records import (
    CompactionRecord,
    DedupRecord,
    FileRecord,
    HistoryRecord,
    LedgerRecord,
    SegmentRecord,
    SubscriptionRecord,
    TopicRecord,
    TrimRecord,
)
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import DataLossError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies, set_topic_policies
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.maintenance.files.collect import collect
from pulsar_on_spark.topic.maintenance.retention.trim import TrimmedTopics, kept_segments, trim_topics, truncate
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages
from tests.kit.journal_logs import LogOnDisk
from tests.kit.pulsar_entries import ClientMessage, single_entry

NAME = TopicName.parse("t")
NOTHING_KEPT = {"retention": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}}
INFINITE = {"retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}


@pytest.fixture
def part(root: Root) -> TopicPart:
    return TopicPart(NAME.full, root.create_topic("t").topic_id, -1)


def fill(root: Root, count: int, start: int = 0, size: int = 1) -> None:
    """Write `count` times, each time one entry and one segment."""
    for number in range(start, start + count):
        messages.write(root, "t", [str(number).encode() * size])


def subscribe(root: Root, part: TopicPart, name: str = "s", at: Position = EARLIEST) -> None:
    subscriptions.create_subscriptions(root.store, name, "Exclusive", {part: at})


def acknowledge(root: Root, part: TopicPart, entries: int, name: str = "s", slot: int = WHOLE) -> Position:
    """A cursor row: by default as a broker writes it."""
    (ledger,) = root.store.view().all(LedgerRecord, part.topic_id)
    at = Position(LedgerId(ledger.ledger_id), EntryId(entries))
    root.store.append_cursors([CursorRow(part.topic_id, name, slot, 1, entries, at.ledger, at.entry)])
    return at


def publish(log: LogOnDisk, number: int) -> None:
    """A broker's entry, in a segment of its own."""
    log.append({"t": [single_entry(ClientMessage(str(number).encode()))]})
    log.roll()
    Sealer(log.root, log.incarnation, is_live=True).seal(tail=True)


def kept(root: Root) -> list[int]:
    return [int(value or b"-1") for value in messages.values(root, "t")]


def later(minutes: float) -> datetime:
    return datetime.now(UTC) + timedelta(minutes=minutes)


def test_nothing_is_trimmed_by_default(root: Root, part: TopicPart) -> None:
    fill(root, 3)
    assert trim_topics(root, now=later(1e6)) == TrimmedTopics()
    assert [each.reason for each in kept_segments(root.store, NAME)] == ["Kept by retention, which has no limit."] * 3


def test_entries_that_every_subscription_has_passed_are_trimmed(root: Root, part: TopicPart) -> None:
    fill(root, 5)
    set_topic_policies(root, NAME, NOTHING_KEPT)
    subscribe(root, part)
    subscribe(root, part, "slow")
    acknowledge(root, part, 4)
    acknowledge(root, part, 2, "slow")
    assert [each.reason for each in kept_segments(root.store, NAME)][1:3] == [
        "Kept until the next pass of housekeeping, which trims it.",
        "Kept for subscription 'slow', which has not acknowledged it.",
    ]

    assert trim_topics(root) == TrimmedTopics(topics=1, segments=2, messages=2, bytes=2)

    assert kept(root) == [2, 3, 4]
    assert trim_topics(root) == TrimmedTopics()
    fill(root, 1, 5)
    assert kept(root) == [2, 3, 4, 5]


def test_a_policy_of_the_namespace_holds_for_all_partitions(root: Root) -> None:
    root.create_topic("p", 3)
    messages.write(root, "p", [b"a", b"b", b"c"])
    set_namespace_policies(root, "public/default", NOTHING_KEPT)
    assert trim_topics(root).messages == 3
    assert messages.values(root, "p") == []


def test_a_completely_trimmed_chain_continues_with_larger_ids(root: Root, part: TopicPart) -> None:
    fill(root, 3)
    set_topic_policies(root, NAME, NOTHING_KEPT)
    (before,) = root.store.view().all(LedgerRecord, part.topic_id)
    assert trim_topics(root).segments == 3

    assert kept(root) == []
    (empty,) = root.store.view().all(LedgerRecord, part.topic_id)
    assert empty.ledger_id > before.ledger_id
    assert trim_topics(root) == TrimmedTopics(), "the empty ledger stays"
    end = chain.read_limit(root.store.view(), part.topic_id)
    assert end == Position(LedgerId(before.ledger_id), EntryId(3))

    set_topic_policies(root, NAME, INFINITE)
    fill(root, 2, 3)
    view = root.store.view()
    plan = chain.plan_range(view, part.name, part.topic_id, -1, end, chain.read_limit(view, part.topic_id))
    assert (plan.rows, plan.losses) == (2, ())
    assert kept(root) == [3, 4]
    assert min(segment.ledger_id for segment in view.all(SegmentRecord, part.topic_id)) > before.ledger_id


def test_an_empty_ledger_that_goes_moves_no_floor(root: Root, part: TopicPart) -> None:
    """A reader of everything is where the last segment ended, also when the ledger that took its place is gone."""
    fill(root, 1)
    end = chain.read_limit(root.store.view(), part.topic_id)
    set_topic_policies(root, NAME, NOTHING_KEPT)
    assert trim_topics(root).segments == 1
    (empty,) = root.store.view().all(LedgerRecord, part.topic_id)
    set_topic_policies(root, NAME, INFINITE)
    fill(root, 2, 1)
    set_topic_policies(root, NAME, {"retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}})

    assert trim_topics(root) == TrimmedTopics()

    view = root.store.view()
    (left,) = view.all(LedgerRecord, part.topic_id)
    assert left.ledger_id > empty.ledger_id
    assert chain.trimmed_before(view, part.topic_id) == end
    chain.require_ledger(view, part.name, part.topic_id, end)
    beginnings = (end, Position(LedgerId(empty.ledger_id), EntryId(0)), EARLIEST)
    for start in beginnings:
        plan = chain.plan_range(view, part.name, part.topic_id, -1, start, chain.read_limit(view, part.topic_id))
        assert (plan.rows, plan.losses) == (2, ()), start
    assert trim_topics(root, now=later(120)).segments == 2
    assert chain.read_limit(root.store.view(), part.topic_id) == Position(LedgerId(left.ledger_id), EntryId(2))


def test_by_time(root: Root, part: TopicPart) -> None:
    fill(root, 2)
    time.sleep(0.01)
    between = datetime.now(UTC)
    time.sleep(0.01)
    fill(root, 2, 2)
    set_topic_policies(root, NAME, {"retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}})
    assert trim_topics(root, now=later(59)) == TrimmedTopics()
    assert trim_topics(root, now=between + timedelta(minutes=60)).segments == 2
    assert kept(root) == [2, 3]
    assert {each.reason for each in kept_segments(root.store, NAME)} == {"Kept by retention: 60 minutes."}


def test_a_retention_longer_than_any_calendar(root: Root, part: TopicPart) -> None:
    """It must not stop the trimming of other topics."""
    fill(root, 2)
    set_topic_policies(root, NAME, {"retention": {"retentionTimeInMinutes": 2**63 - 1, "retentionSizeInMB": -1}})
    assert trim_topics(root, now=later(60)) == TrimmedTopics()
    assert {each.reason for each in kept_segments(root.store, NAME)} == {f"Kept by retention: {2**63 - 1} minutes."}


def test_by_size_as_much_as_the_limit_is_kept(root: Root, part: TopicPart) -> None:
    fill(root, 5, size=600_000)
    set_topic_policies(root, NAME, {"retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": 1}})
    assert trim_topics(root).segments == 3
    assert len(messages.read(root, "t")) == 2


def test_either_limit_is_enough(root: Root, part: TopicPart) -> None:
    fill(root, 2)
    set_topic_policies(root, NAME, {"retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10_000}})
    assert trim_topics(root) == TrimmedTopics()
    assert trim_topics(root, now=later(61)).segments == 2


def test_retention_waits_for_subscriptions(root: Root, part: TopicPart) -> None:
    fill(root, 2)
    subscribe(root, part)
    set_topic_policies(root, NAME, {"retention": {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}})
    assert trim_topics(root, now=later(1e6)) == TrimmedTopics()


def test_a_topic_that_waits_for_its_compaction(root: Root, part: TopicPart) -> None:
    fill(root, 3)
    set_topic_policies(root, NAME, {**NOTHING_KEPT, "compaction_threshold": 100})
    assert trim_topics(root) == TrimmedTopics()
    (ledger,) = root.store.view().all(LedgerRecord, part.topic_id)
    done = CompactionRecord(
        topic_id=part.topic_id,
        compaction_id="c",
        horizon_ledger=ledger.ledger_id,
        horizon_entry=2,
        compacted_at=datetime.now(UTC),
    )
    root.store.commit(lambda _: Change(puts=[done], keys={keys.topic(part.name): None}))
    assert trim_topics(root).segments == 2
    assert [each.reason for each in kept_segments(root.store, NAME)] == [
        "Kept for topic compaction, which has not read it yet."
    ]


def test_entries_that_deduplication_would_replay_are_kept(root: Root, part: TopicPart) -> None:
    fill(root, 3)
    set_topic_policies(root, NAME, NOTHING_KEPT)
    (ledger,) = root.store.view().all(LedgerRecord, part.topic_id)
    known = DedupRecord(topic_id=part.topic_id, ledger=ledger.ledger_id, entry=1, sequence_ids={"p": 7})
    root.store.commit(lambda _: Change(puts=[known], keys={keys.topic(part.name): None}))
    assert trim_topics(root).segments == 1
    assert kept_segments(root.store, NAME)[0].reason == (
        "Kept for deduplication, which replays it when a broker starts."
    )


def test_a_terminated_topic_keeps_its_end(root: Root, part: TopicPart) -> None:
    fill(root, 3)
    set_topic_policies(root, NAME, NOTHING_KEPT)

    def terminate(view: object) -> Change:
        topic = root.store.view().get(TopicRecord, NAME.full)
        (ledger,) = root.store.view().all(LedgerRecord, part.topic_id)
        assert topic is not None
        ended = topic.model_copy(update={"terminated": (ledger.ledger_id, 2)})
        return Change(puts=[ended], keys={keys.topic(NAME.full): None})

    terminate_change = terminate(None)
    root.store.commit(lambda _: terminate_change)
    assert trim_topics(root).segments == 2
    assert kept(root) == [2]


# --- what Spark reads ---


def test_sparks_last_batches_are_kept_for_a_restart(root: Root, part: TopicPart) -> None:
    """Ten minutes and two looks with progress: a checkpoint that lost its last batches still finds them."""
    fill(root, 6)
    subscribe(root, part)
    set_topic_policies(root, NAME, NOTHING_KEPT)
    now = datetime.now(UTC)
    for number, (minute, acked, gone) in enumerate(
        [(0, 1, 0), (5, 3, 0), (10, 5, 1), (11, 6, 1), (30, 6, 3), (50, 6, 3)]
    ):
        acknowledge(root, part, acked, slot=0)
        trim_topics(root, now=now + timedelta(minutes=minute))
        assert kept(root) == list(range(gone, 6)), f"look {number}"
    assert kept_segments(root.store, NAME)[0].reason == (
        "Kept for subscription 's', for which Spark may read it again."
    )
    trim = root.store.view().get(TrimRecord, part.topic_id)
    assert trim is not None
    assert len(trim.marks) == 3


def test_a_cursor_that_moved_back_is_waited_for(root: Root, part: TopicPart) -> None:
    fill(root, 4)
    set_topic_policies(root, NAME, NOTHING_KEPT)
    subscribe(root, part)
    now = datetime.now(UTC)
    for minute, acked in ((0, 2), (10, 3), (20, 4)):
        acknowledge(root, part, acked, slot=0)
        trim_topics(root, now=now + timedelta(minutes=minute)) if minute < 20 else None

    def reset(view: object) -> Change:
        (record,) = root.store.view().all(SubscriptionRecord, part.topic_id)
        moved = record.model_copy(update={"start_epoch": 2, "start_ledger": 0, "start_entry": 0})
        return Change(
            puts=[moved],
            keys={keys.topic(part.name): None, keys.subscription(part.topic_id, "s"): None},
        )

    change = reset(None)
    root.store.commit(lambda _: change)
    trim_topics(root, now=now + timedelta(minutes=20))
    assert kept(root) == [0, 1, 2, 3]


def test_a_read_from_before_the_floor_fails_clearly(root: Root, part: TopicPart) -> None:
    fill(root, 4)
    (ledger,) = root.store.view().all(LedgerRecord, part.topic_id)
    subscribe(root, part)
    acknowledge(root, part, 3)
    set_topic_policies(root, NAME, NOTHING_KEPT)
    trim_topics(root)
    view = root.store.view()
    end = chain.read_limit(view, part.topic_id)

    def losses(entry: int) -> list[str]:
        start = Position(LedgerId(ledger.ledger_id), EntryId(entry))
        plan = chain.plan_range(view, part.name, part.topic_id, -1, start, end)
        assert plan.rows == 1
        return [loss.reason for loss in plan.losses]

    floor = f"{ledger.ledger_id}:3"
    assert losses(1) == [f"entries {ledger.ledger_id}:1 to {floor} were trimmed by retention"]
    assert losses(3) == []
    with pytest.raises(DataLossError, match=f"entries before {floor} are gone"):
        chain.require_ledger(view, part.name, part.topic_id, Position(LedgerId(ledger.ledger_id), EntryId(2)))
    chain.require_ledger(view, part.name, part.topic_id, Position(LedgerId(ledger.ledger_id), EntryId(3)))


# --- with brokers, merges and garbage ---


def test_an_open_ledger_keeps_its_last_segment(root: Root) -> None:
    """It shows the sealer where the ledger continues."""
    log = LogOnDisk(root)
    log.open_ledgers(["t"])
    for number in range(3):
        publish(log, number)
    set_topic_policies(root, NAME, NOTHING_KEPT)
    assert trim_topics(root).segments == 2
    (kept_segment,) = kept_segments(root.store, NAME)
    assert kept_segment.reason.startswith("Kept because its ledger")
    publish(log, 3)
    assert trim_topics(root).segments == 1
    assert len(messages.read(root, "t")) == 1


def test_files_are_deleted_ten_minutes_after_their_last_segment(root: Root, part: TopicPart) -> None:
    fill(root, 2)
    view = root.store.view()
    set_topic_policies(root, NAME, NOTHING_KEPT)
    trim_topics(root)
    assert collect(root).retired_files == 2
    assert len(messages.read(root, "t", view=view)) == 2, "a read that was planned before continues"
    assert collect(root, clock=time.time() + 660).deleted_files == 6
    assert root.store.view().all(FileRecord) == []


def test_a_merge_and_a_trim_of_the_same_segments(root: Root, part: TopicPart, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trim comes between a merge's plan and its commit: what was trimmed does not come back."""
    fill(root, 4)
    set_topic_policies(root, NAME, NOTHING_KEPT)
    rewrite = merge.rewrite
    trimmed: list[TrimmedTopics] = []

    def trimming(*arguments: object) -> object:
        trimmed.append(trim_topics(root))
        return rewrite(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(merge, "rewrite", trimming)
    merge.merge(root)
    assert trimmed[0].segments == 4
    assert kept(root) == []
    assert root.store.view().all(SegmentRecord) == []


def test_a_subscription_that_is_created_meanwhile(root: Root, part: TopicPart, monkeypatch: pytest.MonkeyPatch) -> None:
    """Creating it changes the topic's key: the trim decides again, and keeps what the subscription needs."""
    fill(root, 3)
    set_topic_policies(root, NAME, NOTHING_KEPT)
    other = Root.open(root.path)
    try_commit = root.store._try_commit
    created: list[bool] = []

    def first_subscribe(change: Change, version: int) -> object:
        if not created:
            created.append(True)
            subscribe(other, part)
        return try_commit(change, version)

    monkeypatch.setattr(root.store, "_try_commit", first_subscribe)
    assert trim_topics(root) == TrimmedTopics()
    assert kept(root) == [0, 1, 2]


def test_truncated_entries_are_trimmed_under_any_retention(root: Root, part: TopicPart) -> None:
    fill(root, 3)
    subscribe(root, part)
    end = chain.read_limit(root.store.view(), part.topic_id)
    truncate(root.store, NAME, end)
    assert trim_topics(root) == TrimmedTopics(), "a subscription needs it"
    acknowledge(root, part, 3)
    fill(root, 2, 3)
    assert trim_topics(root).segments == 3
    assert kept(root) == [3, 4]
    assert trim_topics(root) == TrimmedTopics()


def test_a_history_is_built_before_its_topic_is_trimmed(
    root: Root, part: TopicPart, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that is switched on when the topic has old entries; but nothing waits for ever for builds that fail."""

    def build(entries: int) -> None:
        (ledger,) = root.store.view().all(LedgerRecord, part.topic_id)
        built = HistoryRecord(
            topic_id=part.topic_id, table="x", generation=1, to_ledger=ledger.ledger_id, to_entry=entries
        )
        root.store.commit(lambda _: Change(puts=[built], keys={keys.topic(NAME.full): None}))

    fill(root, 3)
    set_topic_policies(root, NAME, {**NOTHING_KEPT, "history": {"enabled": True}})
    assert trim_topics(root).segments == 0
    assert kept_segments(root.store, NAME)[0].reason == "Kept for its history, which is not built so far."
    build(2)
    assert (trim_topics(root).segments, kept(root)) == (2, [2])
    day = 24 * 60.0
    assert trim_topics(root, now=later(6 * day)).segments == 0  # seen to have advanced
    assert trim_topics(root, now=later(12 * day)).segments == 0
    assert not caplog.messages
    assert trim_topics(root, now=later(13.1 * day)).segments == 1
    (said,) = caplog.messages
    assert "1 messages of persistent://public/default/t were trimmed that its history does not have" in said
    fill(root, 1, 3)
    assert trim_topics(root, now=later(14 * day)).segments == 0
    set_topic_policies(root, NAME, {"history": {"enabled": False}})
    assert trim_topics(root, now=later(14 * day)).segments == 1
