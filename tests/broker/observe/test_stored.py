"""Metrics of stored data: lost disks and bad copies show although no process has marked them."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest

from pulsar_on_spark.broker.observe.stored import StorageState, Stored
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.metadata.records import FileRecord, SlotOwner, SubscriptionRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.ids import EARLIEST, FileId, PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.reports import Finding, ReportKind, write_report
from pulsar_on_spark.topic.maintenance.maintain import maintain
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.status import storage_status
from pulsar_on_spark.topic.maintenance.storage_status import CopyNumbers
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    made.create_topic("t")
    messages.write(made, "t", [b"1", b"2"])
    return made


def state_of(root: Root) -> StorageState:
    async def first() -> StorageState:
        stored = Stored(root, Views(root))
        stored.start()
        async with asyncio.timeout(60):
            while not stored.state.at_s:
                await asyncio.sleep(0.005)
        await stored.stop()
        return stored.state

    return asyncio.run(first())


def numbers(storage: CopyNumbers) -> dict[str, object]:
    """Return all numbers except free bytes, because other processes write to the disk meanwhile."""
    paths = [replace(path, free_bytes=None) for path in storage.paths]
    return {**{field.name: getattr(storage, field.name) for field in fields(CopyNumbers)}, "paths": paths}


def test_a_healthy_root_has_all_its_copies(root: Root) -> None:
    state = state_of(root)
    assert state.files == 1
    assert (state.storage.missing_copies, state.storage.bad_copies, state.storage.losses) == (0, (), ())
    assert [path.is_there for path in state.storage.paths] == [True] * 3
    assert 0 < state.root_free_bytes < state.root_total_bytes
    assert state.storage.audit.audited_ms == 0
    assert all(0 < (path.free_bytes or 0) < (path.total_bytes or 0) for path in state.storage.paths)


def test_backlogs_of_subscriptions_that_no_broker_owns(root: Root) -> None:
    (part,) = messages.target(root, "t").parts
    for name in ("rests", "is read"):
        subscriptions.create_subscriptions(root.store, name, "Exclusive", {part: EARLIEST})
    owner = SlotOwner(consumer="0" * 32, epoch=2, start_ledger=0, start_entry=0, slots=(0,))

    def take(view: View) -> Change:
        (taken,) = (record for record in view.all(SubscriptionRecord) if record.name == "is read")
        return Change(puts=[taken.model_copy(update={"face": "broker", "owners": (owner,)})], keys={"key": None})

    root.store.commit(take)
    assert state_of(root).backlogs == {part.topic_id: {"rests": 1}}, "messages of one write are one entry"
    messages.write(root, "t", [b"3"])
    assert state_of(root).backlogs[part.topic_id]["rests"] == 2


def test_a_wiped_path_holds_no_copies_in_any_state(root: Root) -> None:
    directory = root.storage_paths(root.store.view())[PathId(1)].directory
    shutil.rmtree(directory)
    directory.mkdir()
    state = state_of(root)
    assert [(path.state, path.is_there) for path in state.storage.paths] == [
        ("writable", True),
        ("writable", False),
        ("writable", True),
    ]
    assert state.storage.missing_copies == 1
    assert state.storage.paths[1].total_bytes is None


def test_findings_of_readers_and_audits_are_listed(root: Root) -> None:
    (file,) = root.store.view().all(FileRecord)
    for kind, path_id in ((ReportKind.BAD_COPY, PathId(1)), (ReportKind.LOSS, None)):
        write_report(root.path, Finding(kind, FileId(file.file_id), path_id, "rot", 0))
        write_report(root.path, Finding(kind, FileId("0123456789abcdef0123456789abcdef"), path_id, "of a gone file", 0))
    state = state_of(root)
    assert (len(state.storage.bad_copies), len(state.storage.losses), state.storage.missing_copies) == (1, 1, 0)
    assert numbers(state.storage) == numbers(storage_status(root)), "metrics have the numbers of `pulsarpy status`"
    maintain(root)
    assert state_of(root).storage.audit.audited_ms > 0


def test_a_requested_refresh_is_current_and_does_not_wait_for_a_disk_that_hangs(root: Root) -> None:
    gone, hangs = (root.storage_paths(root.store.view())[PathId(number)].directory for number in (1, 2))

    async def writable_paths() -> list[int]:
        stored = Stored(root, Views(root))
        stored.start()
        counts = [(await stored.refresh(60)).paths_to_write]
        gone.rename(gone.with_name("away"))
        counts.append((await stored.refresh(60)).paths_to_write)
        identity, fifo = hangs / IDENTITY_NAME, hangs / "fifo"
        os.mkfifo(fifo)
        fifo.replace(identity)  # reading it waits for a writer
        counts.append((await stored.refresh(0.2)).paths_to_write)
        writer = os.open(identity, os.O_WRONLY)
        identity.unlink()
        os.close(writer)
        counts.append((await stored.refresh(60)).paths_to_write)
        await stored.stop()
        return counts

    assert asyncio.run(writable_paths()) == [3, 2, 2, 1]


def test_cold_paths_hold_offloaded_files_and_take_no_writes(root: Root, tmp_path: Path) -> None:
    storage_paths.add(root, tmp_path / "cold", role="cold")
    offload(root, OffloadRequest(TopicName.parse("t")))
    state = state_of(root)
    assert (state.paths_to_write, state.storage.missing_copies, state.cold_files, state.files) == (3, 0, 1, 1)
    (topic_id,) = state.offloaded
    assert (state.offloaded[topic_id], state.physical[topic_id]) == (2, 8)
