"""A broker's journals: opened for the quorums that its topics need, and closed when no topic needs them."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pulsar_on_spark.broker.runtime import journals as module
from pulsar_on_spark.broker.runtime.journals import Journals
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.model.errors import JournalUnavailableError, NotEnoughCopiesError
from pulsar_on_spark.model.ids import IncarnationId, TopicId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.bundles import is_over
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation
from pulsar_on_spark.topic.managed_ledger.incarnation.roll_over import RollOver
from pulsar_on_spark.topic.managed_ledger.sealing.process import SealingPolicy
from tests.kit import messages
from tests.kit.open_files import open_files_under

ONE, TWO = Quorum(1, 1, 1), Quorum(2, 2, 2)


class NoEntries:
    """A sink for tests that append no entry."""

    def on_entries_acknowledged(self, contexts: Sequence[object]) -> None:
        raise AssertionError

    def on_entries_unknown(self, contexts: Sequence[object]) -> None:
        raise AssertionError

    def on_journal_room(self) -> None:
        """No entry waits."""


def fail(reason: str) -> None:
    """Fail: no incarnation may end by itself."""
    raise AssertionError(reason)


def test_journals_open_and_close_with_the_topics_that_use_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    (part,) = messages.target(root, "t").parts
    topic = TopicId(part.topic_id)
    told: list[list[IncarnationId]] = []
    monkeypatch.setattr(module, "MAX_JOURNALS", 2)

    def ended(*incarnations: Incarnation) -> list[bool]:
        view = root.store.view()
        return [is_over(view, each.id) for each in incarnations]

    async def go() -> None:
        journals = Journals(root, NoEntries(), fail, SealingPolicy(), RollOver(), JournalLimits(), told.append)
        await journals.start(root.quorum)
        first = journals.first.incarnation
        assert await journals.acquire_journal(TopicId("plain"), None) is first
        assert await journals.acquire_journal(TopicId("same"), Quorum(4, 3, 2)) is first, "the ensemble does not matter"

        own = await journals.acquire_journal(topic, ONE)
        assert (own.quorum, told[-1]) == (ONE, [first.id, own.id])
        with pytest.raises(JournalUnavailableError, match="2 others are open"):
            await journals.acquire_journal(TopicId("more"), TWO)
        await own.open_ledgers([part])
        assert await journals.acquire_journal(topic, None) is own, "it continues in the journal with its open ledger"

        await journals.close_unused(math.inf)
        assert list(journals) == [first, own]
        journals.release_journal(topic)
        await journals.close_unused(math.inf)
        assert list(journals) == [first, own], "a ledger is open"
        await own.close_ledgers([topic])
        await journals.close_unused(0)
        assert list(journals) == [first, own], "it was used a moment ago"
        await journals.close_unused(math.inf)
        assert list(journals) == [first], "the first one stays, used or not"
        assert ended(own, first) == [True, False]
        assert told[-1] == [first.id]

        again = await journals.acquire_journal(topic, ONE)
        assert again is not own
        await journals.stop()
        await journals.stop_sealing()
        assert ended(first, again) == [True, True]

    asyncio.run(go())


def test_a_journal_that_cannot_be_opened_does_not_end_the_others(tmp_path: Path) -> None:
    """A topic may need more copies than there are paths: its load fails, and the broker continues."""
    root = Root.create(tmp_path / "root")
    ended: list[str] = []

    async def go() -> None:
        journals = Journals(
            root, NoEntries(), ended.append, SealingPolicy(), RollOver(), JournalLimits(), lambda ids: None
        )
        await journals.start(root.quorum)
        with pytest.raises(NotEnoughCopiesError, match="fewer paths than the ack quorum"):
            await journals.acquire_journal(TopicId("t"), Quorum(4, 4, 4))
        assert list(journals) == [journals.first.incarnation]
        assert await journals.acquire_journal(TopicId("t"), None) is journals.first.incarnation
        assert ended == []
        await journals.stop()

    asyncio.run(go())
    assert ended == []


def test_a_cancelled_start_leaves_no_journal(tmp_path: Path) -> None:
    """As when the client disconnects while its topic is loaded."""
    root = Root.create(tmp_path / "root")
    ended: list[str] = []

    def journal_threads() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith("journal-")]

    async def go() -> None:
        before = len(journal_threads())
        starting = asyncio.create_task(Incarnation.start(root, NoEntries(), on_ended=ended.append))
        while len(journal_threads()) == before:
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        async with asyncio.timeout(30):
            while len(journal_threads()) > before or open_files_under(root.path / "storage"):
                await asyncio.sleep(0.01)
        assert not root.broker_leases().read_all()

    asyncio.run(go())
    assert ended == []
