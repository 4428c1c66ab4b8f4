"""Many requests for metrics cost the broker one page at a time."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_on_spark.broker.web import metrics_page
from pulsar_on_spark.broker.web.metrics_page import MAX_RESPONSES, PAUSE_S, MetricsPage, TooManyResponsesError

LIMIT_S = 60


class Pages:
    """Renders pages "1", "2" and so on, each when `go` is set."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.go = asyncio.Event()

    async def render(self) -> bytes:
        self.begun.append(asyncio.get_running_loop().time())
        number = len(self.begun)
        await self.go.wait()
        return b"%d" % number


def test_requests_share_a_page_that_begins_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        page, pages = MetricsPage(), Pages()
        early = [asyncio.create_task(page.read(pages.render)) for _ in range(3)]
        while not pages.begun:
            await asyncio.sleep(0)
        late = [asyncio.create_task(page.read(pages.render)) for _ in range(3)]
        await asyncio.sleep(0)
        assert len(pages.begun) == 1, "one at a time"
        pages.go.set()
        assert await asyncio.gather(*early, *late) == [b"1"] * 3 + [b"2"] * 3
        assert pages.begun[1] - pages.begun[0] >= PAUSE_S

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def test_a_cancelled_request_and_a_failed_page_do_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "PAUSE_S", 0.0)

    async def fails() -> bytes:
        raise OSError("disk")

    async def scene() -> None:
        page, pages = MetricsPage(), Pages()
        pages.go.set()
        with pytest.raises(OSError, match="disk"):
            await page.read(fails)
        given_up = asyncio.create_task(page.read(pages.render))
        other = asyncio.create_task(page.read(pages.render))
        await asyncio.sleep(0)
        given_up.cancel()
        assert await other == b"1"
        assert await page.read(pages.render) == b"2"

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def test_a_limited_number_of_responses_is_sent_at_once() -> None:
    async def scene() -> None:
        page = MetricsPage()
        turns = [page.turn() for _ in range(MAX_RESPONSES)]
        for each in turns:
            await each.__aenter__()
        with pytest.raises(TooManyResponsesError):
            async with page.turn():
                pass
        await turns[0].__aexit__(None, None, None)
        async with page.turn():
            pass

    asyncio.run(scene())
