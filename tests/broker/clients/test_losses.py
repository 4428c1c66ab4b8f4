"""Entries that no copy gives: where that is wanted, subscriptions go on behind them, and say what was lost."""

from __future__ import annotations

from pathlib import Path

import pulsar

from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.reports import ReportKind, read_reports
from pulsar_on_spark.topic.managed_ledger.sealing.lost_frames import give_up_frames
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from tests.kit import messages
from tests.kit.journal_logs import LogOnDisk
from tests.kit.pulsar_entries import ClientMessage, single_entry
from tests.kit.running_broker import RunningBroker

from .conftest import WAIT_MS, new_client


def lose(root: Root, file_id: str) -> None:
    """Damage all copies of a file."""
    copies = [path for path in root.path.rglob(f"*{file_id}*") if path.suffix == ".arrow"]
    assert len(copies) >= 2
    for path in copies:
        content = bytearray(path.read_bytes())
        content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
        path.write_bytes(content)


def test_messages_that_an_operator_gave_up_are_passed_over(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    log = LogOnDisk(root)
    log.open_ledgers(["t"])
    for number in range(9):
        log.append({"t": [single_entry(ClientMessage(b"message %d" % number))]})
    log.close()
    copies = [*root.path.glob(f"storage/*/journal/{log.incarnation}/*/frames.*")]
    assert len(copies) == 3
    for copy in copies:
        copy.write_bytes(copy.read_bytes().replace(b"message 4", b"message X"))
    give_up_frames(root, log.incarnation, commit=True)
    Sealer(root, log.incarnation, is_live=False).seal(tail=True)
    with RunningBroker(root.path) as broker:
        client = new_client(broker.url)
        consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
        found = [consumer.receive(WAIT_MS).data() for _ in range(8)]
        assert found == [b"message %d" % number for number in range(9) if number != 4]
        client.close()


def test_lost_messages_are_skipped_if_a_setting_allows_it(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    topic_id = root.create_topic("t").topic_id
    for first in (0, 10, 20):
        messages.write(root, "t", [b"%d" % number for number in range(first, first + 10)])
    view = root.store.view()
    files = [segment.file_id for segment in view.all(SegmentRecord, topic_id)]
    assert len(files) == 3
    assert view.get(FileRecord, files[1]) is not None
    lose(root, files[1])
    with RunningBroker(root.path, {"auto_skip_non_recoverable_data": True}) as broker:
        client = new_client(broker.url)
        for type_ in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared):
            consumer = client.subscribe("t", type_.name, type_, initial_position=pulsar.InitialPosition.Earliest)
            found = []
            while len(found) < 20:
                message = consumer.receive(WAIT_MS)
                found.append(int(message.data()))
                consumer.acknowledge(message)
            assert found == [*range(10), *range(20, 30)]
        client.close()
        assert "skips entries" in broker.said
    losses = [report for report in read_reports(root.path) if report.kind == ReportKind.LOSS]
    assert losses
    for loss in losses:
        assert loss.file_id == files[1]
        assert loss.lost is not None
        assert loss.lost.rows == (10,)
