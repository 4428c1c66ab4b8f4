"""Any sequence of writes, seals, merges, trims, builds, crashes, and a user's OPTIMIZE and VACUUM: each message once.

The reader takes the plan of `history()`, and reads the table and the topic without a Spark session.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pulsar_on_spark.datasource import history
from pulsar_on_spark.history_table import build as building
from pulsar_on_spark.history_table import merging
from pulsar_on_spark.history_table.boundary import boundary_of
from pulsar_on_spark.history_table.plan import Progress
from pulsar_on_spark.history_table.table import HistoryTable
from pulsar_on_spark.metadata.log.tables import HISTORY
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.retention.trim import trim_some, truncate
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from tests.kit import messages
from tests.kit.running_incarnation import RunningIncarnation
from tests.kit.waiting import wait_until

T = TopicName.parse("t")
STEPS = (
    "write",
    "write",
    "publish",
    "seal",
    "close",
    "merge",
    "trim",
    "build",
    "build",
    "die",
    "optimize",
    "vacuum",
    "tidy",
)
AT_ONCE = Ages(keep_replaced_s=0)


class Killed(BaseException):
    """The process ends here."""


class DoubledError(AssertionError):
    """A reader got a message twice."""


class World:
    """A topic, its history, and the messages that a reader must get.

    Attributes:
        written: Every message, in the order of writing.
        trimmed_unbuilt: Messages that were trimmed before a build read them, so that no reader can get them.
    """

    def __init__(self, folder: Path) -> None:
        self.root = Root.create(folder / "root")
        self.root.create_topic("t")
        self.written: list[bytes] = []
        self.trimmed_unbuilt: set[bytes] = set()
        self.broker = RunningIncarnation(self.root)
        self.sealer = Sealer(self.root, self.broker.incarnation.id, is_live=True)

    def close(self) -> None:
        self.sealer.close()
        self.broker.kill()

    def step(self, name: str) -> None:
        getattr(self, name)()

    def _new(self) -> bytes:
        self.written.append(b"%d" % len(self.written))
        return self.written[-1]

    def write(self) -> None:
        """Write as Spark does; what it writes behind an open ledger would be readable only later."""
        self.close_ledger()
        messages.write(self.root, "t", [self._new(), self._new()])

    def publish(self) -> None:
        new = [self._new(), self._new(), self._new()]
        self.broker.send("t", new, batch=2)
        wait_until(
            lambda: new[-1] in self.in_topic()
        )  # an acknowledged entry is readable with the journal's next frame

    def seal(self) -> None:
        self.sealer.seal(tail=True)

    def close_ledger(self) -> None:
        self.broker.close_ledger("t")

    def merge(self) -> None:
        merge.merge(self.root)

    def trim(self) -> None:
        """Trim everything that is sealed and may go."""
        before = set(self.in_table()) | set(self.in_topic())
        view = self.root.store.view()
        (record,) = self.root.topics()
        truncate(self.root.store, T, chain.read_limit(view, record.topic_id))
        trim_some(self.root.store, [T.full])
        collect(self.root, AT_ONCE)
        self.trimmed_unbuilt |= before - set(self.in_table()) - set(self.in_topic())

    def build(self) -> None:
        building.build(self.root, T)

    def die(self) -> None:
        """Die between the table's commit and the metadata's."""

        def dies(*arguments: object) -> None:
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(building._PartBuild, "_record", dies)
            with suppress(Killed):
                building.build(self.root, T)

    def optimize(self) -> None:
        if (table := self._table()) is not None:
            table.optimize.compact()

    def vacuum(self) -> None:
        if (table := self._table()) is not None:
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def tidy(self) -> None:
        """Merge the table's small files, as housekeeping does."""
        if self._table() is not None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(merging, "WORTH_FILES", 2)
                (folder,) = self.root.path.glob(f"{HISTORY}/*")
                merging.merge_small_files(HistoryTable(self.root.path, f"{HISTORY}/{folder.name}"))

    def _table(self) -> DeltaTable | None:
        found = list(self.root.path.glob(f"{HISTORY}/*"))
        return DeltaTable(found[0]) if found else None

    def in_table(self) -> list[bytes]:
        """The values in the table by its newest version."""
        source = history._source(self.root.path, T)
        if source.version is None:
            return []
        return [value for name in source.version.files for value in _values(source.place, name)]

    def in_topic(self) -> list[bytes]:
        return self._behind(history._source(self.root.path, T), everything=True)

    def read(self) -> list[bytes]:
        """What `history()` returns."""
        source = history._source(self.root.path, T)
        found = self._behind(source)
        if source.version is not None:
            found += [value for name in source.version.files for value in _values(source.place, name)]
        return found

    def _behind(self, source: history._Source, *, everything: bool = False) -> list[bytes]:
        (part,) = source.parts
        range_ = source.ranges.get(part.name)
        if everything:
            range_ = history._Range(history.EARLIEST, chain.read_limit(source.view, part.topic_id))
        if range_ is None:
            return []
        plan = chain.plan_range(source.view, part.name, part.topic_id, -1, range_.start, range_.end)
        assert not plan.losses
        reader = SliceReader(self.root.place, self.root.storage_paths(source.view), ("value",))
        found: list[bytes] = []
        for slice_ in plan.slices:
            for _, batch in reader.read(slice_):
                found += batch.column("value").to_pylist()
        return found


def _values(folder: Path | None, name: str) -> list[bytes]:
    assert folder is not None
    values: list[bytes] = pq.read_table(folder / name, columns=["value"]).column("value").to_pylist()
    return values


def run(folder: Path, steps: list[str]) -> None:
    with closing(World(folder)) as world:
        for step in steps:
            world.step("close_ledger" if step == "close" else step)
            found = Counter(world.read())
            if doubled := [value for value, count in found.items() if count > 1]:
                raise DoubledError(f"{doubled} after {step}")
            assert set(found) == set(world.written) - world.trimmed_unbuilt, f"after {step}"


@pytest.fixture
def folders(memory_folder: Path) -> Callable[[], TemporaryDirectory[str]]:
    gc.collect()
    return lambda: TemporaryDirectory(dir=memory_folder, ignore_cleanup_errors=True)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=14))
def test_a_reader_gets_each_message_once(folders: Callable[[], TemporaryDirectory[str]], steps: list[str]) -> None:
    with folders() as folder:
        run(Path(folder), steps)


def test_a_reader_that_trusts_the_metadata_gets_messages_twice(
    folders: Callable[[], TemporaryDirectory[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: the boundary of the metadata, without regard to rows of the table behind it."""

    def careless(main: Progress, table: Progress) -> Position:
        boundary_of(main, table)
        return main.to

    monkeypatch.setattr(history, "boundary_of", careless)

    @settings(
        max_examples=200,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(steps=st.lists(st.sampled_from(STEPS), min_size=6, max_size=14))
    def search(steps: list[str]) -> None:
        with folders() as folder:
            run(Path(folder), steps)

    with pytest.raises(DoubledError):
        search()


def test_the_history_keeps_what_the_topic_has_dropped(folders: Callable[[], TemporaryDirectory[str]]) -> None:
    with folders() as folder, closing(World(Path(folder))) as world:
        for step in ("publish", "seal", "close_ledger", "write", "die", "trim"):
            world.step(step)
        assert (world.in_topic(), world.trimmed_unbuilt) == ([], set())
        assert sorted(world.read()) == world.written
