"""A stream reader that is restarted: inside batch 0, after its subscription expired, with other options."""

from __future__ import annotations

import json
import time

import pytest

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.model.errors import InvalidArgumentError, SubscriptionNotFoundError
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.retention.expiry import expire_subscriptions
from tests.kit.messages import write
from tests.kit.micro_batches import Checkpoint, MicroBatchQuery, Point

DAY_S = 24 * 3600.0


@pytest.fixture
def root(root_with_topic: Root) -> Root:
    return root_with_topic


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def query(root: Root, kept: Checkpoint, *, available_now: bool = False, **options: str) -> MicroBatchQuery:
    """A query of topic `t` with a lease that no test lives to see run out."""
    given = {"topic": "t", "leaseDuration": "1 hour", **options}
    if not any("subscription" in name.lower() for name in options):
        del given["leaseDuration"]
    chosen = {name: value for name, value in given.items() if value}
    return MicroBatchQuery(root.path, kept, chosen, available_now=available_now)


def killed_in_its_first_batch(root: Root, point: Point, **options: str) -> Checkpoint:
    """A checkpoint that has the offset of batch 0 and nothing else; its process is gone, its lease is not."""
    kept = Checkpoint()
    run = query(root, kept, **options)
    run.run(stop_at=point)
    run.kill()
    kept.sink.clear()
    return kept


def named(root: Root) -> list[str]:
    return sorted(record.name for record in root.store.view().all(SubscriptionRecord))


def of_version_1(kept: Checkpoint) -> None:
    """Make the checkpoint one of the version that did not name the subscription."""
    for number, text in enumerate(kept.offsets):
        offset = json.loads(text)
        del offset["subscription"]
        kept.offsets[number] = json.dumps({**offset, "v": 1})


# -- batch 0 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", list(Point))
@pytest.mark.parametrize(
    "options", [{"subscriptionPrefix": "p"}, {"subscription": "s"}, {"subscriptionPrefix": "p", "consumerName": "me"}]
)
def test_a_restart_inside_batch_0_loses_nothing_and_does_not_wait(
    root: Root, point: Point, options: dict[str, str]
) -> None:
    write(root, "t", numbered(0, 10))
    kept = killed_in_its_first_batch(root, point, **options)
    write(root, "t", numbered(10, 10))
    query(root, kept, **options).run_all()
    assert kept.values == numbered(10, 10)
    assert len(named(root)) == 1


@pytest.mark.parametrize("point", list(Point))
def test_a_topic_created_during_batch_0_of_a_pattern_is_read_from_its_start(root: Root, point: Point) -> None:
    root.create_topic("c-a")
    options = {"topic": "", "topicsPattern": "c-.*", "subscription": "s"}
    kept = killed_in_its_first_batch(root, point, **options)
    root.create_topic("c-b")
    write(root, "c-b", numbered(0, 10))
    query(root, kept, **options).run_all()
    assert kept.values == numbered(0, 10)


def test_a_first_batch_with_rows_is_equal_in_its_replay(root: Root) -> None:
    write(root, "t", numbered(0, 10))
    options = {"subscriptionPrefix": "p", "subscriptionInitialPosition": "earliest"}
    kept = killed_in_its_first_batch(root, Point.WRITTEN, **options)
    write(root, "t", numbered(10, 10))
    again = query(root, kept, **options)
    again.run()
    assert kept.values == numbered(0, 10)
    again.run_all()
    assert kept.values == numbered(0, 20)


def test_planning_the_start_of_a_query_creates_nothing(root: Root) -> None:
    run = query(root, Checkpoint(), subscriptionPrefix="p")
    first = run.reader.initialOffset()
    write(root, "t", numbered(0, 10))
    assert run.reader.initialOffset() == first
    assert named(root) == []


def test_without_its_checkpoint_a_pattern_reads_new_topics_from_their_start(root: Root) -> None:
    root.create_topic("c-a")
    options = {"topic": "", "topicsPattern": "c-.*", "subscription": "s", "startingOffsets": "latest"}
    run = query(root, Checkpoint(), **options)
    run.run_all()
    run.stop()
    root.create_topic("c-b")
    write(root, "c-b", numbered(0, 10))
    kept = Checkpoint()
    query(root, kept, **options).run_all()
    assert kept.values == numbered(0, 10)


def test_a_topic_added_to_a_subscription_starts_by_the_options(root: Root) -> None:
    run = query(root, Checkpoint(), subscription="s")
    run.run_all()
    run.stop()
    root.create_topic("u")
    write(root, "u", numbered(0, 10))
    kept = Checkpoint()
    query(root, kept, topic="", topics="t,u", subscription="s", startingOffsets="latest").run_all()
    assert kept.values == []


def test_the_first_of_two_starting_queries_sets_the_subscriptions_start(root: Root) -> None:
    write(root, "t", numbered(0, 10))
    first, second = Checkpoint(), Checkpoint()
    late = query(root, second, subscription="s", subscriptionType="Shared", startingOffsets="latest")
    late.reader.initialOffset()
    early = query(root, first, subscription="s", subscriptionType="Shared", startingOffsets="earliest")
    early.run(stop_at=Point.LOGGED)
    early.stop()
    late.run_all()
    assert second.values == numbered(0, 10)


# -- a subscription that expired -----------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_a_daily_job_under_a_prefix_resumes_where_its_checkpoint_is(root: Root, type_: str) -> None:
    kept = Checkpoint()
    options = {"subscriptionPrefix": "p", "subscriptionType": type_, "startingOffsets": "earliest"}
    for day in range(3):
        write(root, "t", numbered(10 * day, 10))
        run = query(root, kept, available_now=True, **options)
        run.run_all()
        run.stop()
        assert kept.values == numbered(0, 10 * day + 10)
        (found,) = root.subscriptions()
        assert found.backlog_messages == 0
        assert expire_subscriptions(root, time.time() + 60) == 0
        assert expire_subscriptions(root, time.time() + DAY_S + 300) == 1


@pytest.mark.parametrize("point", list(Point))
def test_a_batch_of_yesterday_is_replayed_though_its_subscription_expired(root: Root, point: Point) -> None:
    kept = Checkpoint()
    options = {"subscriptionPrefix": "p", "startingOffsets": "earliest"}
    for first in (0, 10):
        write(root, "t", numbered(first, 10))
        run = query(root, kept, available_now=True, **options)
        run.run(stop_at=None if first == 0 else point)
        run.kill()
    kept.sink.pop(1, None)
    assert expire_subscriptions(root, time.time() + DAY_S + 300) == 1
    write(root, "t", numbered(20, 10))
    run = query(root, kept, available_now=True, **options)
    run.run_all()
    assert kept.values == numbered(0, 30)
    (found,) = root.subscriptions()
    assert found.backlog_messages == 0


def test_a_query_that_slept_for_a_day_is_restarted_from_its_checkpoint(root: Root) -> None:
    kept = Checkpoint()
    run = query(root, kept, subscriptionPrefix="p")
    run.run_all()
    run.kill()
    write(root, "t", numbered(0, 10))
    assert expire_subscriptions(root, time.time() + DAY_S + 300) == 1
    with pytest.raises(SubscriptionNotFoundError, match=r"was deleted under this query: restart the query\.$"):
        run.run()
    run.stop()
    query(root, kept, subscriptionPrefix="p").run_all()
    assert kept.values == numbered(0, 10)


def test_a_subscription_that_does_not_expire_is_not_brought_back(root: Root) -> None:
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    run = query(root, kept, subscription="s", startingOffsets="earliest")
    run.run_all()
    run.stop()
    root.delete_subscription("t", "s")
    with pytest.raises(SubscriptionNotFoundError, match="restart the query with a new checkpointLocation"):
        query(root, kept, subscription="s").run()


# -- other options than the checkpoint's ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ({"subscription": "a"}, {"subscription": "b"}, r"under subscription 'a', and this query asks for 'b': set"),
        ({"subscription": "a"}, {}, r"under subscription 'a', and this query asks for none: set"),
        (
            {"subscription": "a"},
            {"subscriptionPrefix": "a"},
            r"under subscription 'a', .* a subscription with the prefix 'a'",
        ),
        (
            {"subscriptionPrefix": "p"},
            {"subscriptionPrefix": "q"},
            r"under subscription 'p-.*', .* with the prefix 'q'",
        ),
        ({"subscriptionPrefix": "p"}, {"subscription": "a"}, r"under subscription 'p-.*', and this query asks for 'a'"),
    ],
)
@pytest.mark.parametrize("point", [Point.WRITTEN, None])
def test_a_checkpoint_of_another_subscription_is_refused_by_name(
    root: Root, before: dict[str, str], after: dict[str, str], sentence: str, point: Point | None
) -> None:
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    run = query(root, kept, startingOffsets="earliest", **before)
    run.run(stop_at=point)
    run.stop()
    other = query(root, Checkpoint(), subscription="b", startingOffsets="earliest")
    other.run()
    other.stop()
    with pytest.raises(InvalidArgumentError, match=rf"^The checkpoint is of a query {sentence}") as refusal:
        query(root, kept, **after).run()
    assert "or start with a new checkpointLocation" in str(refusal.value)


def test_a_query_gets_a_subscription_at_its_checkpoints_position(root: Root) -> None:
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    query(root, kept, startingOffsets="earliest").run_all()
    write(root, "t", numbered(10, 10))
    query(root, kept, subscription="s").run_all()
    assert kept.values == numbered(0, 20)
    assert named(root) == ["s"]


def test_another_consumer_name_keeps_the_subscription_of_a_prefix(root: Root) -> None:
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    run = query(root, kept, subscriptionPrefix="p", consumerName="one", startingOffsets="earliest")
    run.run_all()
    run.stop()
    write(root, "t", numbered(10, 10))
    query(root, kept, subscriptionPrefix="p", consumerName="two").run_all()
    assert kept.values == numbered(0, 20)
    assert named(root) == ["p-one"]


# -- checkpoints of version 1 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"subscriptionPrefix": "p"}, {"subscription": "s"}, {}])
def test_a_checkpoint_of_version_1_is_read_and_kept_while_there_is_no_new_message(
    root: Root, options: dict[str, str]
) -> None:
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    run = query(root, kept, startingOffsets="earliest", **options)
    run.run_all()
    run.stop()
    of_version_1(kept)
    again = query(root, kept, **options)
    assert again.run_all() == 0
    assert len(kept.offsets) == kept.commits == 1
    write(root, "t", numbered(10, 10))
    again.run_all()
    assert kept.values == numbered(0, 20)
    assert json.loads(kept.offsets[-1])["v"] == 2
    assert len(named(root)) == (1 if options else 0)


def test_a_checkpoint_of_version_1_under_a_subscription_is_refused_without_one(root: Root) -> None:
    kept = Checkpoint()
    query(root, kept, subscription="s", startingOffsets="earliest").run()
    offset = json.loads(kept.offsets[0])
    topics = {name: {"id": topic["id"]} for name, topic in offset["topics"].items()}  # as a standby's
    kept.offsets[0] = json.dumps({**offset, "topics": topics})
    of_version_1(kept)
    with pytest.raises(InvalidArgumentError, match="is of a query under a subscription, and this query asks for none"):
        query(root, kept).run()
