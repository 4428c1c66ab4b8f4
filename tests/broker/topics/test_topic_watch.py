"""Topics created while a watch begins are not missed; see also `clients/test_topic_lists.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from pulsar_on_spark.broker.runtime.peer import Peer
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topic_watch import TopicWatch
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.root import Root
from tests.broker.subscriptions.test_subscription import ClientSide

LIMIT_S = 60


class NoTopics(list[object]):
    non_persistent = ()


class FirstIsLate(Views):
    """The first view that is asked for is given only when `go` is set; until then it grows old."""

    def __init__(self, root: Root) -> None:
        super().__init__(root)
        self.is_read = asyncio.Event()
        self.go = asyncio.Event()

    async def view(self) -> View:
        view = await super().view()
        if not self.is_read.is_set():
            self.is_read.set()
            await self.go.wait()
        return view


def test_a_topic_created_while_a_watch_begins_is_announced(tmp_path: Path) -> None:
    root = Root.open_or_create(tmp_path / "root")
    root.create_topic("t-one")

    async def scene() -> None:
        views, client = FirstIsLate(root), ClientSide()
        watch = TopicWatch(views, cast(Topics, NoTopics()))
        beginning = asyncio.create_task(watch.watch(cast(Peer, client), 1, "public/default", "public/default/t-.*", ""))
        await views.is_read.wait()
        root.create_topic("t-two")
        await watch.scan_metadata()  # no client watches yet
        views.go.set()
        assert (await beginning).topics == ["persistent://public/default/t-one"]
        await watch.scan_metadata()
        (told,) = client.written
        assert b"persistent://public/default/t-two" in told

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))
