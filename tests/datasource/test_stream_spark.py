"""Streaming through Spark: reads, writes and subscriptions of one application. Sinks are topics: every row counts."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.root import Root
from tests.kit.messages import read, values, write
from tests.kit.waiting import wait_until

TIMEOUT_S = 90.0


class Streams:
    """Streaming queries from topic to topic on one root."""

    def __init__(self, spark: SparkSession, root: Root, folder: Path) -> None:
        self.spark = spark
        self.root = root
        self.folder = folder
        self.queries: list[StreamingQuery] = []

    def start(
        self, sink: str, checkpoint: str, trigger: dict[str, object] | None = None, topic: str = "in", **options: str
    ) -> StreamingQuery:
        chosen = {} if {"topics", "topicsPattern"} & options.keys() else {"topic": topic}
        frame = self.spark.readStream.format("pulsarpy").options(**chosen, **options).load(str(self.root.path))
        writer = frame.select("__key", "value").writeStream.format("pulsarpy").option("topic", sink)
        writer = writer.option("path", str(self.root.path))
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        self.queries.append(query)
        return query

    def run(self, sink: str, checkpoint: str, **options: str) -> StreamingQuery:
        """A run with Trigger.AvailableNow to its end."""
        query = self.start(sink, checkpoint, {"availableNow": True}, **options)
        query.awaitTermination(int(TIMEOUT_S))
        assert not query.isActive
        return query


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(spark, Root.create(tmp_path / "root"), tmp_path / "checkpoints")
    made.root.create_topic("in")
    made.root.create_topic("out")
    yield made
    for query in made.queries:
        query.stop()


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def keyed(root: Root, topic: str, first: int, count: int) -> None:
    found = numbered(first, count)
    write(root, topic, found, [b"key-%d" % (int(value) % 50) for value in found])


def full_batches(query: StreamingQuery) -> list[dict[str, Any]]:
    return [json.loads(entry.json) for entry in query.recentProgress if entry["numInputRows"]]


def test_a_query_over_topics_that_are_created_and_deleted(streams: Streams):
    root = streams.root
    for first in (0, 10, 20):
        write(root, "in", numbered(first, 10))
    options = {"topicsPattern": "in.*", "startingOffsets": "earliest", "maxMessagesPerTrigger": "10"}
    query = streams.start("out", "one", **options)
    query.processAllAvailable()
    assert values(root, "out") == numbered(0, 30)
    batches = full_batches(query)
    assert [batch["numInputRows"] for batch in batches] == [10, 10, 10]
    backlogs = [batch["sources"][0]["latestOffset"] for batch in batches]
    found = [(backlog["backlogMessages"], backlog["backlogBytes"]) for backlog in backlogs]
    assert found == [(20, 120), (10, 60), (0, 0)]

    # New partitions and new matching topics, from their earliest message.
    root.create_topic("in-more", 2)
    root.add_partitions("in-more", 3)
    keyed(root, "in-more", 30, 30)
    query.processAllAvailable()
    assert sorted(values(root, "out")) == numbered(0, 60)

    # An idle stream makes no batches.
    offsets = streams.folder / "one" / "offsets"
    before = sorted(path.name for path in offsets.iterdir())
    time.sleep(1.0)
    assert sorted(path.name for path in offsets.iterdir()) == before

    # Stopped in the middle, then continued from the checkpoint; startingOffsets is ignored from now on.
    query.stop()
    write(root, "in", numbered(60, 10))
    again = streams.start("out", "one", **{**options, "startingOffsets": "latest"})
    again.processAllAvailable()
    assert sorted(values(root, "out")) == numbered(0, 70)

    # A topic deleted under the query ends it, in one sentence.
    root.delete_topic("in-more")
    wait_until(lambda: not again.isActive, "the query continues over a deleted topic")
    said = str(again.exception())
    assert (
        "Messages may be lost: topic persistent://public/default/in-more-partition-0 was deleted under this query"
        in said
    )
    assert "set option failOnDataLoss to false" in said
    assert "Traceback" not in said
    lenient = streams.run("out", "one", **options, failOnDataLoss="false")
    assert lenient.exception() is None
    assert sorted(values(root, "out")) == numbered(0, 70)


def test_available_now_leaves_its_cursor_at_the_end_and_gives_the_subscription_back(streams: Streams):
    root = streams.root
    for first in (0, 10, 20):
        write(root, "in", numbered(first, 10))
    options = {"subscription": "s", "startingOffsets": "earliest", "leaseDuration": "1 hour"}
    streams.run("out", "one", maxMessagesPerTrigger="10", **options)
    (status,) = root.subscriptions()
    assert status.backlog_messages == 0
    write(root, "in", numbered(30, 10))
    # A query without that checkpoint continues at the cursor, at once although the lease was for an hour.
    streams.run("out", "two", **options)
    assert values(root, "out") == numbered(0, 40)
    # Trigger.Once ignores limits.
    once = streams.start(
        "out-once",
        "once",
        {"once": True},
        startingOffsets="earliest",
        maxMessagesPerTrigger="1",
        minOffsetsPerTrigger="999",
    )
    once.awaitTermination(int(TIMEOUT_S))
    assert len(values(root, "out-once")) == 40
    assert len(full_batches(once)) == 1


def test_exclusive_refuses_a_second_live_query_and_stop_releases_it(streams: Streams):
    root = streams.root
    write(root, "in", numbered(0, 10))
    options = {"subscription": "s", "startingOffsets": "earliest", "leaseDuration": "2s"}
    first = streams.start("out", "one", **options)
    first.processAllAvailable()
    second = streams.start("out", "two", **options)
    wait_until(lambda: not second.isActive, "the second query was not refused")
    said = str(second.exception())
    assert "is Exclusive and consumer" in said
    assert "stop that query, or use another subscription or type" in said
    assert "Traceback" not in said

    leases = root.path / "leases"
    wait_until(lambda: len(list(leases.rglob("*.json"))) == 1, "the refused query left its lease")
    first.stop()
    wait_until(lambda: not list(leases.rglob("*.json")), "the lease was not given up")
    write(root, "in", numbered(10, 10))
    streams.run("out", "three", **options)
    assert values(root, "out") == numbered(0, 20)


def test_key_shared_queries_share_a_topic_and_a_sink(streams: Streams):
    root = streams.root
    options = {
        "subscription": "s",
        "subscriptionType": "Key_Shared",
        "startingOffsets": "earliest",
        "leaseDuration": "3s",
    }
    running = [streams.start(sink, sink, **options) for sink in ("out", "out-2")]
    wait_until(lambda: _slots(root) == [32, 32], "the slots were not shared evenly")
    for first in range(0, 500, 100):
        keyed(root, "in", first, 100)
    wait_until(lambda: len(values(root, "out")) + len(_values(root, "out-2")) >= 500, "messages are missing")
    for query in running:
        query.processAllAvailable()
    assert sorted(values(root, "out") + values(root, "out-2")) == numbered(0, 500)
    found = [[(dict(row.columns)["key"], row.value) for row in read(root, sink)] for sink in ("out", "out-2")]
    assert not {key for key, _ in found[0]} & {key for key, _ in found[1]}
    for rows in found:
        for key in {key for key, _ in rows}:
            of_key = [value for found_key, value in rows if found_key == key]
            assert of_key == sorted(of_key)
    # One leaves: the other has everything, nothing twice.
    running[0].stop()
    keyed(root, "in", 500, 100)
    wait_until(lambda: len(values(root, "out") + values(root, "out-2")) >= 600, "messages are missing after a leave")
    running[1].processAllAvailable()
    assert sorted(values(root, "out") + values(root, "out-2")) == numbered(0, 600)


def _values(root: Root, topic: str) -> list[bytes | None]:
    return values(root, topic) if any(found.name.endswith(f"/{topic}") for found in root.topics()) else []


def _slots(root: Root) -> list[int]:
    records = root.store.view().all(SubscriptionRecord)
    owners = Counter(owner.consumer for record in records for owner in record.owners for _ in owner.slots)
    return sorted(owners.values())


def test_foreach_batch_with_a_transaction_writes_each_batch_once(streams: Streams):
    root = streams.root
    for first in (0, 10, 20):
        write(root, "in", numbered(first, 10))
    calls: list[int] = []

    def save(batch: DataFrame, batch_id: int) -> None:
        calls.append(batch_id)
        for _ in range(2):  # the second time is a replay
            batch.select("value").write.format("pulsarpy").mode("append").option("topic", "out").option(
                "txnAppId", "each"
            ).option("txnVersion", str(batch_id)).save(str(root.path))

    frame = (
        streams.spark.readStream.format("pulsarpy")
        .option("topic", "in")
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", "10")
        .load(str(root.path))
    )
    writer = frame.writeStream.foreachBatch(save).option("checkpointLocation", str(streams.folder / "each"))
    query = writer.trigger(availableNow=True).start()
    streams.queries.append(query)
    query.awaitTermination(int(TIMEOUT_S))
    assert calls == sorted(set(calls))
    assert values(root, "out") == numbered(0, 30)


def test_an_error_in_the_first_batch_loses_nothing_under_a_prefix_and_a_pattern(streams: Streams):
    root, delivered = streams.root, []
    write(root, "in", numbered(0, 10))

    def run(fails: bool) -> None:
        def sink(frame: DataFrame, _: int) -> None:
            rows = [bytes(row.value) for row in frame.select("value").collect()]
            if fails:
                raise RuntimeError("the user's error")
            delivered.extend(rows)

        options = {"topicsPattern": "in.*", "subscriptionPrefix": "p", "leaseDuration": "1 hour"}
        frame = streams.spark.readStream.format("pulsarpy").options(**options).load(str(root.path))
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(streams.folder / "first"))
        query = writer.start()
        streams.queries.append(query)
        if fails:
            with pytest.raises(StreamingQueryException, match="the user's error"):
                query.awaitTermination(int(TIMEOUT_S))
        else:
            query.processAllAvailable()
            query.stop()

    run(fails=True)
    root.create_topic("in-more")
    write(root, "in", numbered(10, 10))
    write(root, "in-more", numbered(20, 10))
    run(fails=False)
    assert sorted(delivered) == numbered(10, 20)
    assert len({record.name for record in root.store.view().all(SubscriptionRecord)}) == 1
