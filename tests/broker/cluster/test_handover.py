"""A bundle whose topics do not close at the first attempt."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pulsar_on_spark.broker.broker import Broker
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.views import FRESH_FOR_S
from pulsar_on_spark.broker.subscriptions.topic_subscriptions import TopicSubscriptions
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.catalog import TopicPart

LIMIT_S = 120
NAME = TopicName.parse("t")


def test_a_bundle_is_given_with_all_ledgers_closed(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closes: list[TopicSubscriptions] = []
    close = TopicSubscriptions.close

    async def fails_once(subscriptions: TopicSubscriptions) -> None:
        closes.append(subscriptions)
        if len(closes) == 1:
            raise MetadataError("The metadata cannot be written now.")
        await close(subscriptions)

    monkeypatch.setattr(TopicSubscriptions, "close", fails_once)
    settings = BrokerSettings(broker_service_port=0, web_service_port=0)

    async def go() -> None:
        one = await Broker.start(memory_path / "root", settings)
        two = await Broker.start(memory_path / "root", settings)
        try:
            await one._ownership.find_owner(NAME)
            owner, other = (one, two) if not await is_elsewhere(one) else (two, one)
            one.root.create_topic("t")
            topic = await owner._topics.get(NAME)
            assert isinstance(topic, BrokerTopic)
            await topic.incarnation.open_ledgers([TopicPart(topic.part.name, topic.part.topic_id, -1)])
            bundle = owner._ownership.bundles(await owner._views.view(), NAME.namespace).bundle_of(NAME)
            to = other._ownership.incarnation
            await owner._handover.unload([bundle], to)
            assert len(closes) > 1, "closing the topic failed, and was repeated"
            assert topic.incarnation.unclosed_topics == []
            assert await is_elsewhere(owner)
            loaded = await other._topics.get(NAME)
            assert isinstance(loaded, BrokerTopic)
            assert await loaded.incarnation.open_ledgers([loaded.part]) == {}
        finally:
            await one.stop()
            await two.stop()

    async def is_elsewhere(broker: Broker) -> bool:
        return broker._ownership.is_elsewhere(await broker._views.view(), NAME)

    asyncio.run(asyncio.wait_for(go(), LIMIT_S))


def test_a_lookup_names_the_next_owner_at_once(memory_path: Path) -> None:
    settings = BrokerSettings(broker_service_port=0, web_service_port=0)

    async def go() -> None:
        brokers = [await Broker.start(memory_path / "root", settings) for _ in range(3)]
        by_id = {broker._ownership.incarnation: broker for broker in brokers}
        try:
            for _ in range(5):
                found = await asyncio.gather(*(broker._ownership.find_owner(NAME) for broker in brokers))
                (owner,) = {by_id[each.incarnation] for each in found}
                next_one, third = (broker for broker in brokers if broker is not owner)
                bundle = owner._ownership.bundles(owner._views.recent, NAME.namespace).bundle_of(NAME)
                await owner._handover.unload([bundle], next_one._ownership.incarnation)
                await next_one._ownership.require_served(NAME)
                await asyncio.sleep(FRESH_FOR_S)
                assert (await third._ownership.find_owner(NAME)).incarnation == next_one._ownership.incarnation
        finally:
            for broker in brokers:
                await broker.stop()

    asyncio.run(asyncio.wait_for(go(), LIMIT_S))
