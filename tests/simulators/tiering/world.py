"""Every step that changes where messages are: of writers, brokers, housekeeping, operators and users."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pytest

from pulsar_on_spark.datasource import history
from pulsar_on_spark.history_table import merging
from pulsar_on_spark.history_table.build import BuildOptions, build
from pulsar_on_spark.history_table.deletion import delete_history
from pulsar_on_spark.history_table.recorded import end_of_messages
from pulsar_on_spark.history_table.retention import apply_retention, delete_files
from pulsar_on_spark.history_table.table import HistoryTable
from pulsar_on_spark.history_table.upkeep import keep_up, maintain_with_histories
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.errors import InvalidArgumentError, StorageError
from pulsar_on_spark.model.ids import EntryId, LedgerId, PathId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import registry
from pulsar_on_spark.topic.catalog.policies.change import set_topic_policies
from pulsar_on_spark.topic.catalog.policies.policies import HistoryPolicies
from pulsar_on_spark.topic.data_path.attach import attach
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema
from pulsar_on_spark.topic.maintenance.compaction.compact import compact
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from pulsar_on_spark.topic.maintenance.retention.trim import trim_topics, truncate
from tests.kit import messages
from tests.kit.pulsar_entries import ClientMessage, batch_entry
from tests.kit.root_checks import violations
from tests.kit.waiting import wait_until
from tests.simulators.tiering.oracle import WAIT_HOURS, Message, ViolationError
from tests.simulators.tiering.scene import COLD, DISKS, TICK_MS, Scene, T, U

AT_ONCE: Final = Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1)
SCHEMAS: Final = ("number BIGINT", "number BIGINT, note STRING", "number STRING, note STRING")
OPTIONS: Final = (
    BuildOptions(),
    BuildOptions(step_bytes=50, piece_bytes=30),
    BuildOptions(limit_bytes=50),
    BuildOptions(step_bytes=100),
)
NOTHING: Final = {"retention": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}}
_EVERYTHING_MS: Final = 1 << 62


class World(Scene):
    """The steps, each a method with a number, which chooses among its variants."""

    def take(self, name: str, number: int = 0) -> None:
        """Take a step. While a cold path is away, steps may fail as far as they need it."""
        self._steps.add(name)
        try:
            getattr(self, name)(number)
        except (StorageError, InvalidArgumentError):
            if self.away is None:
                raise

    def recover(self, name: str, number: int) -> None:
        """Go on in a new process after the one that took a step was killed; an operator's command is given again."""
        self.reopen(0)
        set_topic_policies(self.root, T, {"retention": None})
        set_topic_policies(self.root, U, {"retention": None})
        if name in ("forget", "drain", "lose_cold"):
            self.take(name, number)

    def check_end(self) -> None:
        """Hold the root against its invariants: in the end, no file is left over."""
        self.take("come_back")
        for _ in range(2):
            self.take("housekeep")
        self.check()
        if found := violations(self.root):
            raise ViolationError(found[0])
        files = self.root.store.view().all(FileRecord)
        named = {(path_id, name) for file in files for path_id, name in file.names.items()}
        stored = {
            (int(path_id), stored.name)
            for path_id, path in self.root.current_storage_paths().items()
            for stored in path.segment_files(0)
        }
        if stored != named:
            raise ViolationError(f"copies are left over, or missing: {stored ^ named}")

    # --- writes ---

    def write(self, number: int) -> None:
        """Write one or both topics as Spark does, in one file. Behind an open ledger, it would be readable later."""
        self.close_ledgers(0)
        chosen = {"t": number % 4 != 3, "u": number % 4 > 1}
        rows = {}
        for topic in (name for name, is_chosen in chosen.items() if is_chosen):
            part = self._part(number // 4) if topic == "t" else self._parts(U)[0]
            made = self._made(part.name, 3)
            batch = messages.make_rows([_value(each) for each in made], [b"key"] * 3)
            times = pa.array([each.published_ms for each in made], batch.schema.field("publish_time").type)
            place = batch.schema.get_field_index("publish_time")
            rows[TopicName.parse(part.name).full] = batch.set_column(place, batch.schema.field(place), times)
        write_id = messages.new_write_id()
        attach(self.root.store, write_id, [messages.stage(self.root, rows, write_id)], None)

    def publish(self, number: int) -> None:
        """Publish as a client does, and wait until Spark can read it, which is with the journal's next frame."""
        part = self._part(number)
        entries = [self._made(part.name, count) for count in (2, 1)]
        name = TopicName.parse(part.name)
        first = len(self._broker.acknowledged_ids)
        self._broker.send_entries(name.full, [_entry(each) for each in entries], [2, 1])
        for id_, entry in zip(self._broker.acknowledged_ids[first:], entries, strict=True):
            for index, message in enumerate(entry):
                message.id = (id_.ledger, id_.entry, index)
        last = self._broker.acknowledged_ids[-1]
        end = Position(LedgerId(last.ledger), EntryId(last.entry + 1))
        wait_until(lambda: end_of_messages(history._source(self.root.place, name).view, part.topic_id) >= end)

    def close_ledgers(self, number: int) -> None:
        """Close the topic's open ledgers."""
        for part in self._parts(T):
            self._broker.close_ledger(part.name)

    def seal(self, number: int) -> None:
        """Seal what is in the broker's journal."""
        self._sealer.seal(tail=True)

    def restart(self, number: int) -> None:
        """Stop the broker, and start another one. Housekeeping seals the closed journal."""
        self._sealer.close()
        self._broker.stop()
        self._start_broker()

    def evolve(self, number: int) -> None:
        """Give the topic its first or next schema."""
        if self._schema < len(SCHEMAS):
            schema = TopicSchema.parse("JSON", SCHEMAS[self._schema])
            registry.add_schema(self.root.store, T, schema, Strategy.ALWAYS_COMPATIBLE)
            self._schema += 1

    def reopen(self, number: int) -> None:
        """Go on in a new process."""
        self.root = Root.open(self._folder / "root")

    # --- segments and their files ---

    def merge(self, number: int) -> None:
        """Merge small segments and files."""
        merge.merge(self.root)

    def compact(self, number: int) -> None:
        """Compact a topic, which puts its newest messages into files of their own."""
        compact(self.root, "tu"[number % 2])

    def truncate(self, number: int) -> None:
        """Truncate the topic before one of its messages."""
        part = self._part(number)
        known = [each.id for each in self.parts[part.name].written if each.id is not None]
        if known:
            ledger, entry, _ = known[number % len(known)]
            before = Position(LedgerId(ledger), EntryId(entry))
            truncate(self.root.store, TopicName.parse(part.name), before)
            trim_topics(self.root, now=self._now())

    def trim(self, number: int) -> None:
        """Trim everything that is sealed and may go, of either topic."""
        topic = U if number % 4 == 3 else T
        set_topic_policies(self.root, topic, NOTHING)
        trim_topics(self.root, now=self._now())
        set_topic_policies(self.root, topic, {"retention": None})

    def collect(self, number: int) -> None:
        """Delete the files that no record needs."""
        collect(self.root, AT_ONCE)

    def housekeep(self, number: int) -> None:
        """Run a pass of all housekeeping."""
        report = maintain_with_histories(self.root, AT_ONCE)
        self._require_none(report.problems)

    def repair(self, number: int) -> None:
        """Restore copies."""
        repair(self.root)

    def lose_copy(self, number: int) -> None:
        """Delete a copy of a file that has another good one."""
        if self.away is not None:
            return
        paths = self.root.current_storage_paths()
        files = [file for file in self.root.store.view().all(FileRecord) if file.replaced_at is None]
        for file in files[number % (len(files) or 1) :]:
            there = [each for each in file.copies if paths[PathId(each)].has_segment(file.names[each])]
            if len(there) > 1:
                gone = there[number % len(there)]
                paths[PathId(gone)].delete_segment(file.names[gone])
                return

    # --- cold storage ---

    def offload(self, number: int) -> None:
        """Move what is due, or asked for, and delete the other copies of files whose lag is over."""
        topic = (None, T, T, U)[number % 4]
        request = None if topic is None else OffloadRequest(topic, keep_bytes=40 * (number % 3))
        offload(self.root, request, now=self._now)

    def wait(self, number: int) -> None:
        """Let the deletion lag of files pass, or the time for which trimming waits for builds."""
        self._hours += 5 if number % 4 else WAIT_HOURS + 2

    def leave(self, number: int) -> None:
        """Let a cold path be away, unless the operator is at work there."""
        if self.away is None and not self._is_replacing:
            self.away = number % COLD
            self._cold(self.away).rename(self._folder / "away")

    def come_back(self, number: int) -> None:
        """Let it be there again."""
        if self.away is not None:
            (self._folder / "away").rename(self._cold(self.away))
            self.away = None

    def drain(self, number: int) -> None:
        """Drain a cold path, and use it again."""
        path_id = DISKS + number % COLD
        storage_paths.drain(self.root, path_id)
        repair(self.root)
        storage_paths.resume(self.root, path_id)

    def lose_cold(self, number: int) -> None:
        """Give a cold path up and bring it back, unless it has the only copies of files."""
        if self.away is None:
            self._is_replacing = True
            try:
                with suppress(InvalidArgumentError):
                    storage_paths.give_up(self.root, DISKS + number % COLD)
                    repair(self.root)
                    storage_paths.add(self.root, self._cold(number % COLD), role="cold")
            finally:
                self._is_replacing = False

    # --- the history ---

    def build(self, number: int) -> None:
        """Build the history, also in small steps, or a limited part of it."""
        build(self.root, T, OPTIONS[number % len(OPTIONS)])

    def build_vacuumed(self, number: int) -> None:
        """Build, while a VACUUM deletes what no version of the table names, before it is committed."""
        commit = HistoryTable.commit

        def vacuumed(*arguments: Any, **named: Any) -> None:
            patch.setattr(HistoryTable, "commit", commit)
            self.vacuum(1)
            commit(*arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HistoryTable, "commit", vacuumed)
            self.build(number)

    def keep_up(self, number: int) -> None:
        """Build and keep up the histories that policies want."""
        self._require_none(keep_up(self.root))

    def want(self, number: int) -> None:
        """Switch the policy on."""
        set_topic_policies(self.root, T, {"history": {"enabled": True}})
        for part in self._parts(T):
            self.parts[part.name].advanced_hours = self._hours

    def unwant(self, number: int) -> None:
        """Switch the policy off."""
        set_topic_policies(self.root, T, {"history": {"enabled": False}})

    def retain(self, number: int) -> None:
        """Apply a retention to the table: by size 0, or by the time of a message."""
        found, written = self._table(), [each for part in self._parts(T) for each in self.parts[part.name].written]
        if found is None or not written:
            return
        if number % 3 == 0:
            self._cut_ms = _EVERYTHING_MS
            apply_retention(found, HistoryPolicies(retention_size_in_mb=0))
            return
        limit_ms = written[number % len(written)].published_ms + TICK_MS // 6
        self._cut_ms = max(self._cut_ms or 0, limit_ms + TICK_MS // 2)
        minutes = (int(time.time() * 1000) - limit_ms) // 60_000
        apply_retention(found, HistoryPolicies(retention_time_in_minutes=minutes))

    def tidy(self, number: int) -> None:
        """Merge the table's small files, and delete those that no version names."""
        found = self._table()
        if found is not None:
            merging.merge_small_files(found)
            delete_files(found, self._parts(T))
            found.housekeep()

    def forget(self, number: int) -> None:
        """Delete the history."""
        delete_history(self.root, T)

    def optimize(self, number: int) -> None:
        """A user's OPTIMIZE, and a VACUUM of the files that it has removed."""
        found = self._deltas()
        if found is not None:
            found.optimize.compact()
            if number % 2:
                found.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def vacuum(self, number: int) -> None:
        """A user's VACUUM: of removed files, or of all that no version names."""
        found = self._deltas()
        if found is not None:
            found.vacuum(0, dry_run=False, enforce_retention_duration=False, full=bool(number % 2))


def _value(message: Message) -> bytes:
    return json.dumps({"number": message.number, "note": str(message.number)}).encode()


def _entry(made: Sequence[Message]) -> bytes:
    published = MessageMetadata(publish_time=made[0].published_ms)
    return batch_entry([ClientMessage(_value(each)) for each in made], metadata=published)
