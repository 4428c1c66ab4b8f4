"""A sealer beside a journal that writes: its lag holds producers back, and they go on when it has caught up."""

from __future__ import annotations

import time

import pytest

from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.metadata.records import SegmentRecord
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.sealing.process import SealingPolicy, SealingProcess
from tests.kit import messages
from tests.kit.journal_logs import journal_files
from tests.kit.running_incarnation import RunningIncarnation
from tests.kit.waiting import wait_until

MIB = 1 << 20
VALUE = b"{" + b"v" * 16_000 + b"}"
BURST = [VALUE] * 20
TOPICS = ("a", "b", "c")


@pytest.mark.parametrize("rounds", [2, pytest.param(5, marks=pytest.mark.long)])
def test_held_back_by_the_lag_again_and_again(root: Root, rounds: int) -> None:
    """Only age makes this sealer work, so that producers reach the limit on any machine."""
    policy = SealingPolicy(
        backlog_bytes=1 << 40, max_age_s=0.5, interval_s=0.05, trim_interval_s=0.1, lag_limit_bytes=3 * MIB, grace_s=0
    )
    for topic in TOPICS:
        root.create_topic(topic)
    written = dict.fromkeys(TOPICS, 0)
    with RunningIncarnation(root, limits=JournalLimits(roll_bytes=MIB)) as running:
        sealing = SealingProcess(root.path, running.incarnation.id, policy)
        sealing.start()
        try:
            for _ in range(rounds):
                deadline_s = time.monotonic() + 60
                while not sealing.is_over_lag_limit():
                    assert time.monotonic() < deadline_s, "the limit is reached"
                    for topic in TOPICS:
                        running.send(topic, BURST, batch=4)
                        written[topic] += len(BURST)
                # What a broker does: it reads nothing from producers meanwhile.
                wait_until(lambda: not sealing.is_over_lag_limit(), "the sealer catches up")
            view_rows = lambda: sum(s.rows for s in root.store.view().all(SegmentRecord))  # noqa: E731
            wait_until(lambda: view_rows() == sum(written.values()), "all is sealed")
            wait_until(
                lambda: len(journal_files(root, running.incarnation.id)) <= 6, "all but the live file is trimmed"
            )
            assert sealing.is_alive()
        finally:
            sealing.stop()
        running.stop()
    for topic in TOPICS:
        assert messages.values(root, topic) == [VALUE] * written[topic]
