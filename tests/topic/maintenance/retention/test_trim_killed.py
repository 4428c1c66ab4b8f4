"""Trimming, merging and collecting, killed again and again: exactly the unacknowledged messages are there."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable

import pytest

from pulsar_on_spark.metadata.cursors import WHOLE, CursorRow
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.policies.change import set_topic_policies
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.retention.trim import trim_topics
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages

pytestmark = pytest.mark.long

HOUSEKEEPER = """
import sys
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.files.merge import merge
from pulsar_on_spark.topic.maintenance.retention.trim import trim_topics
from pulsar_on_spark.root import Root

root = Root.open(sys.argv[1])
print("ready", flush=True)
while True:
    trim_topics(root)
    merge(root)
    collect(root, Ages(keep_replaced_s=0))
"""
"""Replaced files are deleted at once: no reader runs meanwhile."""


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.soak)])
def test_killed_at_random_points(root: Root, start_python: Callable[..., subprocess.Popen[str]], kills: int) -> None:
    part = TopicPart(TopicName.parse("t").full, root.create_topic("t").topic_id, -1)
    nothing_kept = {"retention": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}}
    set_topic_policies(root, TopicName.parse("t"), nothing_kept)
    subscriptions.create_subscriptions(root.store, "s", "Exclusive", {part: EARLIEST})
    chance, written, acknowledged = random.Random(kills), 0, 0
    for _ in range(kills):
        housekeeper = start_python(HOUSEKEEPER, root.path)
        assert housekeeper.stdout is not None
        housekeeper.stdout.readline()
        for _ in range(8):
            messages.write(root, "t", [str(written).encode()])
            written += 1
        acknowledged = chance.randrange(acknowledged, written)
        _acknowledge(root, part, acknowledged)
        time.sleep(chance.uniform(0, 0.5))
        housekeeper.kill()
        housekeeper.wait()
        left = [int(value or b"") for value in messages.values(root, "t")]
        assert left == list(range(left[0], written)), "the front goes, and nothing else"
        assert left[0] <= acknowledged

    trim_topics(root)
    collect(root, Ages(keep_replaced_s=-1))
    collect(root, Ages(keep_replaced_s=-1))
    view = root.store.view()
    named = {segment.file_id for segment in view.all(SegmentRecord)}
    assert {file.file_id for file in view.all(FileRecord)} == named
    # Segments that a merge made may begin before what is acknowledged.
    assert [int(value or b"") for value in messages.values(root, "t")][-1] == written - 1
    end = chain.read_limit(view, part.topic_id)
    rest = chain.plan_range(view, part.name, part.topic_id, -1, Position(end.ledger, EntryId(acknowledged)), end)
    assert (rest.rows, rest.losses) == (written - acknowledged, ())


def _acknowledge(root: Root, part: TopicPart, entries: int) -> None:
    """As a broker's snapshot does; all entries are in one ledger."""
    newest = root.store.view().newest(SegmentRecord, part.topic_id)
    assert newest is not None
    at = Position(LedgerId(newest.ledger_id), EntryId(entries))
    root.store.append_cursors([CursorRow(part.topic_id, "s", WHOLE, 1, entries, at.ledger, at.entry)])
