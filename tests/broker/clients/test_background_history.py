"""A broker's housekeeping builds the histories that policies ask for."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest
from deltalake import DeltaTable

from pulsar_on_spark.metadata.records import HistoryRecord, HistoryTableRecord
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

SETTINGS = {"maintain_interval_s": 0.5, "seal_within_s": 0.2}


@pytest.mark.long
def test_messages_of_clients_come_into_the_table(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    set_namespace_policies(root, "public/default", {"history": {"enabled": True}})
    with RunningBroker(root.path, SETTINGS) as broker:
        client = pulsar.Client(broker.url)
        producer = client.create_producer("clicks")
        for number in range(100):
            producer.send(b"%d" % number)
        wait_until(lambda: built(root) == 100)
        producer.send(b"100")
        wait_until(lambda: built(root) == 101)
        client.close()
    (record,) = root.store.view().all(HistoryTableRecord)
    values = DeltaTable(root.path / record.table).to_pyarrow_table()["value"].to_pylist()
    assert sorted(map(int, values)) == list(range(101))


def built(root: Root) -> int:
    """The number of messages in tables."""
    return sum(record.rows for record in root.store.view().all(HistoryRecord))
