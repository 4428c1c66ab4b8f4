"""Topics created while a watch begins are not missed; see also `clients/test_topic_lists.py`."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from pulsar_on_spark.broker.runtime.peer import Peer
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topic_list_watcher import TopicListWatcher
from pulsar_on_spark.broker.topics.topic_watch import MAX_WATCHERS, TopicWatch
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import InvalidArgumentError
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


def test_lists_are_matched_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace may have ten thousand topics, and each of its clients a hundred patterns."""
    root = Root.open_or_create(tmp_path / "root")
    threads: list[int] = []

    def noted(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            threads.append(threading.get_ident())
            return method(*arguments)

        return call

    for name in ("begin", "change"):
        monkeypatch.setattr(TopicListWatcher, name, noted(getattr(TopicListWatcher, name)))

    async def scene() -> None:
        client = ClientSide()
        watch = TopicWatch(Views(root), cast(Topics, NoTopics()))
        await asyncio.gather(*(watch.watch(cast(Peer, client), each, "public/default", ".*", "") for each in range(3)))
        root.create_topic("t")
        await watch.scan_metadata()
        assert len(client.written) == 3

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))
    assert len(threads) == 6
    assert threading.get_ident() not in threads


def test_a_watch_that_ends_while_lists_are_matched_gets_no_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root.open_or_create(tmp_path / "root")
    change, runs, goes_on = TopicListWatcher.change, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        runs.set()
        assert goes_on.wait(LIMIT_S)
        return change(*arguments)

    monkeypatch.setattr(TopicListWatcher, "change", slow)

    async def scene() -> None:
        client = ClientSide()
        watch = TopicWatch(Views(root), cast(Topics, NoTopics()))
        await watch.watch(cast(Peer, client), 1, "public/default", ".*", "")
        root.create_topic("t")
        scan = asyncio.create_task(watch.scan_metadata())
        await asyncio.to_thread(runs.wait, LIMIT_S)
        watch.unwatch(cast(Peer, client), 1)
        goes_on.set()
        await scan
        assert client.written == []

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def test_a_client_watches_a_limited_number_of_lists(tmp_path: Path) -> None:
    root = Root.open_or_create(tmp_path / "root")

    async def scene() -> None:
        client = cast(Peer, ClientSide())
        watch = TopicWatch(Views(root), cast(Topics, NoTopics()))
        asked = (watch.watch(client, each, "public/default", ".*", "") for each in range(MAX_WATCHERS + 5))
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(each, InvalidArgumentError) for each in found) == 5
        await watch.watch(client, 0, "public/default", ".*", "")
        watch.unwatch(client, 0)
        await watch.watch(client, MAX_WATCHERS + 9, "public/default", ".*", "")

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))
    assert MAX_WATCHERS == 100, "as docs/broker.md says"
