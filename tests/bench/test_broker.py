"""The benchmark of the broker itself: a load of the Go client on a broker of ours, for as short as it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.broker.load import Load, Shape
from bench.broker.measures import MEASURES, Bench
from bench.broker.targets import Protection, our_broker
from pulsar_on_spark.model.quorum import Quorum
from tests.kit.go import find_go

needs_go = pytest.mark.skipif(find_go() is None, reason="Go is not installed")


@pytest.mark.soak
@needs_go
@pytest.mark.parametrize("protection", Protection)
def test_every_figure_can_be_measured(tmp_path: Path, protection: Protection) -> None:
    bench = Bench(Load(tmp_path), seconds=2.0, sustained_s=20.0, flow_bytes=1e6, topics=20, topic_rate=10)
    with our_broker(tmp_path, Quorum(3, 3, 2), protection) as broker:
        for name, measure in MEASURES.items():
            figures = measure(broker, bench)
            skipped = {"handshakes": protection is not Protection.TLS, "shapes": protection is Protection.ROLES}
            assert bool(figures) is not skipped.get(name, False)
            assert all(value >= 0 for value in figures.values()), figures


@pytest.mark.soak
@needs_go
def test_messages_sent_to_many_topics_are_received(tmp_path: Path) -> None:
    shape = Shape(length_s=5.0, warm_up_s=1.0, topics=50, rate=20, consumers=1)
    load = Load(tmp_path)
    with our_broker(tmp_path, Quorum(3, 3, 2)) as broker:
        outcome = load.run(broker, "t", shape)
    # The load itself fails where not all arrives; how much of it falls into the seconds that count is the machine's.
    assert min(outcome.acked, outcome.received) > 0
    assert 0 < outcome.end_to_end_p50_ms <= outcome.end_to_end_p99_ms <= outcome.end_to_end_max_ms * 1.02
