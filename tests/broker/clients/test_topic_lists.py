"""Clients that watch which topics there are, as Java's regular expressions do."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import (
    CommandSuccess,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    ServerError,
)
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from tests.kit.running_broker import RunningBroker

from .raw import answer, answer_of, command, connect

LIMIT_S = 60


def watch(pattern: str, topics_hash: str = "", watcher_id: int = 5) -> bytes:
    asked = CommandWatchTopicList(
        request_id=9, watcher_id=watcher_id, namespace="public/default", topics_pattern=pattern, topics_hash=topics_hash
    )
    return command("WATCH_TOPIC_LIST", watchTopicList=asked)


def test_a_watcher_is_notified_of_matching_topics_that_are_created_and_deleted(
    broker: RunningBroker, topic: str
) -> None:
    root = Root.open(broker.root)
    full = f"persistent://public/default/{topic}"
    root.create_topic(f"{topic}-a")

    async def scene() -> None:
        reader, writer = await connect(broker.url)
        writer.write(watch(f"persistent://public/default/{topic}-.*"))
        first = (await answer_of(reader, "WATCH_TOPIC_LIST_SUCCESS")).watchTopicListSuccess
        assert (first.request_id, first.watcher_id, list(first.topic)) == (9, 5, [f"{full}-a"])
        root.create_topic(f"other-{topic}-b")
        root.create_topic(f"{topic}-p", partitions=2)
        came = (await answer_of(reader, "WATCH_TOPIC_UPDATE")).watchTopicUpdate
        assert list(came.new_topics) == [f"{full}-p-partition-0", f"{full}-p-partition-1"]
        catalog.delete_topic(root.store, TopicName.parse(f"{topic}-a"))
        went = (await answer_of(reader, "WATCH_TOPIC_UPDATE")).watchTopicUpdate
        assert (list(went.new_topics), list(went.deleted_topics)) == ([], [f"{full}-a"])
        writer.write(watch(f"{'public/default/' + topic}-.*", went.topics_hash, watcher_id=6))
        known = (await answer_of(reader, "WATCH_TOPIC_LIST_SUCCESS")).watchTopicListSuccess
        assert (list(known.topic), known.topics_hash) == ([], went.topics_hash)
        for watcher in (5, 6):
            closing = CommandWatchTopicListClose(request_id=watcher, watcher_id=watcher)
            writer.write(command("WATCH_TOPIC_LIST_CLOSE", watchTopicListClose=closing))
            assert (await answer(reader)).success == CommandSuccess(request_id=watcher)
        writer.close()

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


@pytest.mark.parametrize("pattern", [r"public/default/(?!x).*", "x" * 51, "(", r"(a)\1"])
def test_a_pattern_that_cannot_be_applied_is_refused_and_its_client_polls(broker: RunningBroker, pattern: str) -> None:
    async def scene() -> None:
        reader, writer = await connect(broker.url)
        writer.write(watch(pattern))
        refused = (await answer_of(reader, "ERROR")).error
        assert (refused.request_id, refused.error) == (9, ServerError.NotAllowedError)
        writer.close()

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))
