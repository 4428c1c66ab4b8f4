"""Any mixture of ledgers, entries, batches and codecs comes out of shared batches as it went in, and out of merges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import pyarrow as pa
import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.metadata.records import SegmentRecord
from pulsar_on_spark.model.ids import EntryId, Position
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.entries import packing
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.sealing import sealed_rows, sealer
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from tests.kit import messages
from tests.kit.journal_logs import LogOnDisk
from tests.kit.pulsar_entries import read_entry

from .test_sealer import mixed_entries, sealed_entries

TOPICS = 6
NUMBERS = count()
Frame = list[tuple[int, int]]
"""(topic, entries) of each of its ledgers."""
frames = st.lists(
    st.lists(st.tuples(st.integers(0, TOPICS - 1), st.integers(1, 12)), min_size=1, max_size=8).map(
        lambda runs: list(dict(runs).items())
    ),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return Root.create(tmp_path_factory.mktemp("shared") / "root")


@pytest.fixture(scope="module", autouse=True)
def small_sizes() -> Iterator[None]:
    """So that a few entries make what in earnest takes megabytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "SHARED_BATCH_BYTES", 600)
        patch.setattr(sealer, "MAX_CHUNK_BYTES", 6_000)
        patch.setattr(sealed_rows, "MAX_FILE_BYTES", 16_000)
        yield


def check(log: LogOnDisk, topics: Sequence[str], cuts: st.DataObject) -> None:
    """Clients get the entries, Spark the messages, of whole ledgers and of any part of one."""
    view = log.root.store.view()
    reader = SliceReader(
        log.root.path, log.root.storage_paths(view), tuple(SEGMENT_SCHEMA.names), fail_on_data_loss=False
    )
    for topic in topics:
        ledger = log.ledger(topic)
        sent = log.entries.get(ledger, [])
        for found, given_ in zip(sealed_entries(log.root, ledger), sent, strict=True):
            assert found == given_ or read_entry(found) == read_entry(given_)
        if not sent:
            continue
        (part,) = messages.target(log.root, topic).parts
        first = cuts.draw(st.integers(0, len(sent) - 1))
        end = cuts.draw(st.integers(first + 1, len(sent)))

        def rows(begin: int, stop: int) -> list[tuple[object, ...]]:
            start, limit = (Position(ledger, EntryId(entry)) for entry in (begin, stop))  # noqa: B023
            plan = chain.plan_range(view, part.name, part.topic_id, -1, start, limit)  # noqa: B023
            assert not plan.losses
            columns = [SEGMENT_SCHEMA.empty_table().select(["entry_id", "value"])]
            for slice_ in plan.slices:
                columns += [
                    pa.Table.from_batches([batch]).select(["entry_id", "value"]) for _, batch in reader.read(slice_)
                ]
            return [tuple(row.values()) for row in pa.concat_tables(columns).to_pylist()]

        assert rows(first, end) == [row for row in rows(0, len(sent)) if first <= int(str(row[0])) < end]


@settings(max_examples=8, phases=(Phase.reuse, Phase.generate, Phase.shrink))
@given(made=frames, seed=st.integers(0, 999), rolls=st.sets(st.integers(0, 12), max_size=2), cuts=st.data())
def test_any_mixture(shared_root: Root, made: list[Frame], seed: int, rolls: set[int], cuts: st.DataObject) -> None:
    prefix = f"t{next(NUMBERS)}"
    topics = [f"{prefix}-{number}" for number in range(TOPICS)]
    log = LogOnDisk(shared_root)
    log.open_ledgers(topics)
    pool = iter(mixed_entries(sum(entries for frame in made for _, entries in frame), seed))
    for number, frame in enumerate(made):
        log.append({topics[topic]: [next(pool) for _ in range(entries)] for topic, entries in frame})
        if number in rolls:
            log.roll()
    log.close()
    Sealer(log.root, log.incarnation, is_live=False).seal(tail=True)
    event(f"shared: {any(segment.places for segment in log.root.store.view().all(SegmentRecord))}")
    check(log, topics, cuts)
    merge.merge(log.root)
    check(log, topics, cuts)
