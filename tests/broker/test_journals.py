"""A broker's journals: opened for the quorums that its topics ask for, and closed when none does."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from pulsar_on_spark.broker import journals as module
from pulsar_on_spark.broker.journals import Journals
from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.model.errors import JournalUnavailableError
from pulsar_on_spark.model.ids import IncarnationId, TopicId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.testing import messages
from pulsar_on_spark.topic.incarnation.listener import Appended
from pulsar_on_spark.topic.incarnation.roll_over import RollOver
from pulsar_on_spark.topic.root import Root
from pulsar_on_spark.topic.sealing.process import SealingPolicy

ONE, TWO = Quorum(1, 1, 1), Quorum(2, 2, 2)


class Listener:
    """Hears nothing, as nothing is appended; an incarnation that ends by itself is a failure."""

    def acknowledged(self, entries: Sequence[Appended]) -> None:
        raise AssertionError

    def cursors_acknowledged(self, contexts: Sequence[object]) -> None:
        raise AssertionError

    def unknown(self, contexts: Sequence[object]) -> None:
        raise AssertionError

    def room(self) -> None:
        """Nobody waits."""

    def ended(self, reason: str) -> None:
        raise AssertionError(reason)


def test_journals_come_and_go_with_the_topics_that_use_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    (part,) = messages.target(root, "t").parts
    topic = TopicId(part.topic_id)
    told: list[list[IncarnationId]] = []
    monkeypatch.setattr(module, "MAX_JOURNALS", 2)

    def state(incarnation: IncarnationId) -> str:
        record = root.store.view().get(IncarnationRecord, incarnation)
        assert record is not None
        return record.state

    async def go() -> None:
        journals = Journals(root, Listener(), SealingPolicy(), RollOver(), told.append)
        await journals.start(root.quorum)
        first = journals.first.incarnation
        assert await journals.take(TopicId("plain"), None) is first
        assert await journals.take(TopicId("same"), Quorum(4, 3, 2)) is first, "the ensemble does not matter"

        own = await journals.take(topic, ONE)
        assert (own.quorum, told[-1]) == (ONE, [first.id, own.id])
        with pytest.raises(JournalUnavailableError, match="2 others are open"):
            await journals.take(TopicId("more"), TWO)
        await own.open_ledgers([part])
        assert await journals.take(topic, None) is own, "it goes on where its ledger is open"

        await journals.close_unused(math.inf)
        assert list(journals) == [first, own]
        journals.leave(topic)
        await journals.close_unused(math.inf)
        assert list(journals) == [first, own], "a ledger is open"
        await own.close_ledgers([topic])
        await journals.close_unused(0)
        assert list(journals) == [first, own], "it was used a moment ago"
        await journals.close_unused(math.inf)
        assert list(journals) == [first], "the first one stays, used or not"
        assert (state(own.id), state(first.id), told[-1]) == ("CLOSED", "OPEN", [first.id])

        again = await journals.take(topic, ONE)
        assert again is not own
        await journals.stop()
        await journals.stop_sealing()
        assert {state(each) for each in (first.id, again.id)} == {"CLOSED"}

    asyncio.run(go())
