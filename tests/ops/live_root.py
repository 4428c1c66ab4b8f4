"""A small root on which everything is to be found that commands meet, and what must be in it whatever is killed."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pulsar_on_spark.ledger.journal.files import JOURNAL
from pulsar_on_spark.metadata.records import FileRecord, IncarnationRecord
from pulsar_on_spark.model.ids import EntryId, IncarnationId, LedgerId, PathId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.maintenance.files.collect import Ages
from pulsar_on_spark.topic.maintenance.repair.checking import check
from pulsar_on_spark.topic.maintenance.status import topic_subscriptions
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages
from tests.kit.root_checks import leftovers, violations
from tests.kit.running_incarnation import RunningIncarnation

WRITTEN, KEYED, SPREAD, BROKERED = "written", "keyed", "spread", "brokered"
SUBSCRIPTION = "billing"
BEHIND = 2
"""Number of messages that are acknowledged."""
PATHS = 4
PAST = Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1)


class LiveRoot:
    """The root, and what was acknowledged of it.

    Attributes:
        path: Where it is.
        scratch: A directory for whatever commands make beside it.
        expected: Topic -> values in order; of `SPREAD` in the order of their writes.
    """

    def __init__(self, scratch: Path, rng: random.Random) -> None:
        self.path = scratch / "root"
        self.scratch = scratch
        self.expected: dict[str, list[bytes]] = {WRITTEN: [], KEYED: [], SPREAD: [], BROKERED: []}
        self._rng = rng
        self._numbers = itertools.count()
        root = Root.create(self.path, [scratch / f"disk{number}" for number in range(PATHS)])
        for topic in (WRITTEN, KEYED, BROKERED):
            root.create_topic(topic)
        root.create_topic(SPREAD, partitions=2)
        self.write(WRITTEN)
        start = Position(LedgerId(messages.read(root, WRITTEN)[0].id.ledger), EntryId(BEHIND))
        subscriptions.create_subscriptions(root.store, SUBSCRIPTION, "Exclusive", {_part(root, WRITTEN): start})
        self.stir()
        self.die_as_broker()

    def open(self) -> Root:
        """As a process does that starts now."""
        return Root.open(self.path)

    def fresh(self, kind: str) -> str:
        """A name that nothing has."""
        return f"{kind}-{next(self._numbers)}"

    def write(self, topic: str) -> None:
        """A few messages more, each an entry of its own, as Spark writes them."""
        values = [self.fresh("m").encode() for _ in range(2)]
        keys = [b"k%d" % self._rng.randrange(3) for _ in values]
        for value, key in zip(values, keys, strict=True):
            messages.write(self.open(), topic, [value], [key])
        self.expected[topic] += values

    def stir(self) -> None:
        """Small writes, one that fails before its commit, a copy that vanishes and one that rots."""
        root = self.open()
        for topic in (WRITTEN, KEYED, SPREAD):
            self.write(topic)
        messages.stage(root, {WRITTEN: messages.make_rows([b"never committed"])}, messages.new_write_id())
        view = root.store.view()
        paths = root.storage_paths(view)
        live = [file for file in view.all(FileRecord) if file.replaced_at is None and len(file.copies) == 3]
        vanished, rotten = self._rng.sample(live, 2)
        paths[PathId(vanished.copies[0])].segment_file(vanished.names[vanished.copies[0]]).unlink(missing_ok=True)
        damaged = paths[PathId(rotten.copies[1])].segment_file(rotten.names[rotten.copies[1]])
        if damaged.exists():
            damaged.write_bytes(b"\0" * rotten.length)

    def die_as_broker(self, topic: str = BROKERED) -> IncarnationId:
        """A broker incarnation with entries that are acknowledged and not sealed is killed."""
        values = [self.fresh("b").encode() for _ in range(5)]
        with RunningIncarnation(self.open(), lease_duration_s=1.0) as broker:
            broker.send(topic, values)
        self.expected.setdefault(topic, []).extend(values)
        return broker.incarnation.id

    def journals(self, incarnation: IncarnationId) -> dict[PathId, Path]:
        """Return the folders of an incarnation's files on the storage paths that have some."""
        root = self.open()
        paths = root.storage_paths(root.store.view())
        found = {path_id: path.directory / JOURNAL / incarnation for path_id, path in paths.items()}
        return {path_id: directory for path_id, directory in found.items() if directory.exists()}

    # --- what must be so ---

    def check(self) -> Root:
        """Check the invariants of any time, without a writer; return the root as opened for the check."""
        root = self.open()
        assert violations(root) == []
        view = root.store.view()
        for topic in (WRITTEN, KEYED):
            assert [each.value for each in messages.read(root, topic, view=view)] == self.expected[topic], topic
        self._check_spread(messages.read(root, SPREAD, view=view))
        shown = self.shown(root)
        assert shown == self.expected[BROKERED][: len(shown)], "a part of what is acknowledged, from the beginning on"
        (found,) = [each for each in topic_subscriptions(root, view) if each.name == SUBSCRIPTION]
        assert found.backlog_messages == len(self.expected[WRITTEN]) - BEHIND
        return root

    def shown(self, root: Root, topic: str = BROKERED, *, settle: bool = False) -> list[bytes | None]:
        """Return what a reader sees of a broker's topic now; all of it if it waits for dead brokers' leases."""
        with closing(Tail(root)) as tail:
            view = tail.read_view([_part(root, topic)], settle=settle)
            return [each.value for each in messages.read(root, topic, view=view)]

    def _check_spread(self, found: Sequence[messages.Message]) -> None:
        numbers: dict[int, list[int]] = {}
        for each in found:
            assert each.value is not None
            numbers.setdefault(each.id.partition, []).append(int(each.value.partition(b"-")[2]))
        assert sorted(each.value or b"" for each in found) == sorted(self.expected[SPREAD])
        assert all(each == sorted(each) for each in numbers.values()), "partitions keep the order"

    def check_after_all(self) -> None:
        """Housekeeping leaves nothing lacking and nothing over."""
        root = self.open()
        root.recover()
        assert self.shown(root, settle=True) == self.expected[BROKERED]
        self._maintain_whole(root)
        status = root.status(verify=True)
        assert (status.missing_copies, status.unchecked_copies, status.bad_copies, status.losses) == (0, 0, (), ())
        assert root.store.view().all(IncarnationRecord) == []
        assert leftovers(root) == []
        assert messages.values(root, BROKERED) == self.expected[BROKERED]
        self.check()

    def _maintain_whole(self, root: Root) -> None:
        problems: list[str] = []
        for _ in range(2):  # a journal's files go after its trim was committed
            seal_closed(root, problems.append, grace_s=0)
        for path in root.storage_paths(root.store.view()).values():
            for file in path.directory.glob("segments/*/*"):
                os.utime(file, (0, 0))  # files that were not touched for long
        for _ in range(2):
            done = root.maintain(PAST)
            problems += done.problems
        assert problems == []
        check(root)  # a repair reads a part of the copies at a time, and may not have met the rotten one yet
        assert root.repair().is_whole


def _part(root: Root, topic: str) -> TopicPart:
    """The topic, which has no partitions."""
    view = root.store.view()
    (part,) = catalog.parts(view, catalog.require_topic(view, TopicName.parse(topic)))
    return part
