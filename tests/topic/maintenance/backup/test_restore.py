"""A root as it was: a new root, independent of the one it was made of, that names what it lacks."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark.metadata import store as store_module
from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.log import cleaning
from pulsar_on_spark.metadata.records import FileRecord, IncarnationRecord, LedgerRecord, SegmentRecord, TopicRecord
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.errors import (
    CopiesUnreachableError,
    DataLossError,
    InvalidArgumentError,
    NotARootError,
    RootExistsError,
)
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.data_path.transactions import Transaction
from pulsar_on_spark.topic.maintenance.backup import restore
from pulsar_on_spark.topic.maintenance.backup.restore import restore_root
from pulsar_on_spark.topic.maintenance.compaction.compact import compact
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.maintenance.files.collect import Ages
from pulsar_on_spark.topic.maintenance.retention.trim import truncate
from pulsar_on_spark.topic.managed_ledger.chain.chain import read_limit
from tests.kit import messages
from tests.kit.running_broker import RunningBroker

AT_ONCE = Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1)


def version(root: Root) -> int:
    return root.store.view().version


def topic_id(root: Root) -> str:
    (topic,) = root.store.view().all(TopicRecord)
    return topic.topic_id


def write_some(root: Root, writes: int = 3) -> int:
    """Write to topic `t`, which is made; returns the version."""
    root.create_topic("t")
    for number in range(writes):
        messages.write(root, "t", [b"%d-%d" % (number, row) for row in range(5)])
    return version(root)


def test_messages_and_cursors_are_as_they_were(root: Root, memory_path: Path) -> None:
    then = write_some(root)
    before = messages.read(root, "t")
    root.store.append_cursors([CursorRow(topic_id(root), "s", 0, 1, 1, 1, 2)])
    at = datetime.now(UTC)
    time.sleep(0.002)  # the log's times have milliseconds
    messages.write(root, "t", [b"later"])
    root.store.append_cursors([CursorRow(topic_id(root), "s", 0, 1, 2, 1, 4)])

    done = restore_root(root, memory_path / "restored", at)

    assert (done.version, done.topics, done.messages, done.files) == (then, 1, 15, 3)
    assert (done.missing, done.unsealed) == ((), ())
    shutil.rmtree(root.path)
    restored = Root.open(memory_path / "restored")
    assert messages.read(restored, "t") == before
    assert [row.entry for row in restored.store.cursors().of(topic_id(restored), "s")] == [2]
    status = restored.status(verify=True)
    assert (status.missing_copies, status.verified_copies) == (0, 9)
    messages.write(restored, "t", [b"new"])
    assert messages.values(restored, "t")[-1] == b"new"


def test_what_was_merged_since_is_restored_entry_by_entry(root: Root, memory_path: Path) -> None:
    then = write_some(root, 3)
    before = messages.read(root, "t")
    for number in range(3):
        messages.write(root, "t", [b"later %d" % number])
    assert merge.merge(root).new_segments == 1
    root.maintain(AT_ONCE)
    (merged,) = root.store.view().all(FileRecord)

    done = restore_root(root, memory_path / "restored", then)

    restored = Root.open(memory_path / "restored")
    assert done.missing == ()
    assert [file.file_id for file in restored.store.view().all(FileRecord)] == [merged.file_id]
    assert messages.read(restored, "t") == before
    (segment,) = restored.store.view().all(SegmentRecord)
    assert (segment.entries, segment.rows) == (3, 15)
    messages.write(restored, "t", [b"new"])
    merge.merge(restored)
    assert messages.values(restored, "t") == [*(each.value for each in before), b"new"]


def test_deleted_topics_are_listed_as_lost(root: Root, memory_path: Path) -> None:
    root.create_topic("kept")
    messages.write(root, "kept", [b"k"])
    root.create_topic("gone")
    messages.write(root, "gone", [b"1", b"2"])
    then = version(root)
    lost = next(segment.file_id for segment in root.store.view().all(SegmentRecord) if segment.rows == 2)
    root.delete_topic("gone")
    root.maintain(AT_ONCE)
    root.maintain(AT_ONCE)

    dry = restore_root(root, memory_path / "restored", then, dry_run=True)
    assert not (memory_path / "restored").exists()
    done = restore_root(root, memory_path / "restored", then)

    assert dry == done
    (missing,) = done.missing
    assert (missing.file_id, missing.topic, missing.messages) == (lost, "persistent://public/default/gone", 2)
    restored = Root.open(memory_path / "restored")
    assert messages.values(restored, "kept") == [b"k"]
    with pytest.raises(DataLossError, match=f"2 messages of .*gone .* are lost: .*{lost}"):
        messages.read(restored, "gone")
    assert messages.read(restored, "gone", fail_on_data_loss=False) == []
    assert {loss.file_id for loss in restored.status().losses} == {lost}
    assert not restored.repair().is_whole


def test_a_topic_that_was_deleted_by_mistake_comes_back(root: Root, memory_path: Path) -> None:
    then = write_some(root)
    before = messages.read(root, "t")
    root.delete_topic("t")
    root.maintain()
    assert restore_root(root, memory_path / "restored", then).missing == ()
    assert messages.read(Root.open(memory_path / "restored"), "t") == before


def test_a_compacted_ledger_whose_file_is_gone_is_made_again_from_the_log(root: Root, memory_path: Path) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"1", b"2"], [b"k", b"k"])
    compact(root, "t")
    then = version(root)
    messages.write(root, "t", [b"3"], [b"k"])
    compact(root, "t")
    for _ in range(2):
        root.maintain(AT_ONCE)
    assert restore_root(root, memory_path / "restored", then).missing == ()
    restored = Root.open(memory_path / "restored")
    assert messages.read_compacted(restored, "t") == []
    compact(restored, "t")
    assert [message.value for message in messages.read_compacted(restored, "t")] == [b"2"]


def test_messages_that_were_trimmed_before_are_not_lost(root: Root, memory_path: Path) -> None:
    write_some(root)
    root.store.append_cursors([CursorRow(topic_id(root), "s", 0, 1, 1, 1, 3)])
    truncate(root.store, TopicName.parse("t"), read_limit(root.store.view(), topic_id(root)))
    root.maintain(AT_ONCE)
    assert messages.values(root, "t") == []
    done = restore_root(root, memory_path / "restored", version(root))
    assert (done.messages, done.missing) == (0, ())
    restored = Root.open(memory_path / "restored")
    assert messages.values(restored, "t") == []
    assert [row.entry for row in restored.store.cursors().of(topic_id(root), "s")] == [3]
    messages.write(restored, "t", [b"new"])
    assert messages.values(restored, "t") == [b"new"]


def test_transactions_are_known_as_of_then(root: Root, memory_path: Path) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"0"], transaction=Transaction("q/one", 0, "one"))
    then = version(root)
    messages.write(root, "t", [b"1"], transaction=Transaction("q/one", 1, "one"))
    restore_root(root, memory_path / "restored", then)
    restored = Root.open(memory_path / "restored")
    assert restored.store.key_version("q/one") == 0
    messages.write(restored, "t", [b"1"], transaction=Transaction("q/one", 1, "one"))
    assert messages.values(restored, "t") == [b"0", b"1"]


def test_a_restored_root_is_another_root(root: Root, memory_path: Path) -> None:
    then = write_some(root, 1)
    restore_root(root, memory_path / "restored", then)
    restored = Root.open(memory_path / "restored")
    assert restored.cluster_id != root.cluster_id
    assert restored.quorum == root.quorum
    assert {str(path.place) for path in restored.current_storage_paths().values()} == {
        f"{restored.path}/storage/{number}" for number in range(3)
    }


def test_moments_that_are_not_kept_are_refused(root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "KEEP_ENTRIES", 0)
    monkeypatch.setattr(cleaning, "KEEP_S", -1.0)
    began = datetime.now(UTC) - timedelta(seconds=1)
    write_some(root, 1)
    root.store.fold_and_checkpoint()
    oldest = version(root)
    messages.write(root, "t", [b"later"])
    target = memory_path / "restored"
    for moment, said in (
        (oldest - 1, f"Version {oldest - 1} is not kept.* from version {oldest} of "),
        (oldest + 2, f"Version {oldest + 2} is not kept.* to version {oldest + 1} of "),
        (began, f"is not kept: .* from version {oldest} of "),
        (datetime.now(UTC) + timedelta(hours=1), "is in the future"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            restore_root(root, target, moment)
    assert not target.exists()
    assert restore_root(root, target, oldest).messages == 5


def test_a_target_that_exists_is_refused(root: Root, memory_path: Path) -> None:
    then = write_some(root, 1)
    used = memory_path / "used"
    used.mkdir()
    (used / "thesis.tex").touch()
    for target, error in (
        (used, NotARootError),
        (Root.create(memory_path / "another").path, RootExistsError),
        (root.path / "inside", InvalidArgumentError),
        (root.path.parent, InvalidArgumentError),
    ):
        with pytest.raises(error):
            restore_root(root, target, then)


def test_a_path_that_is_away_is_no_loss(root: Root, memory_path: Path) -> None:
    then = write_some(root, 1)
    (root.path / "storage").rename(memory_path / "away")
    for dry_run in (True, False):
        with pytest.raises(CopiesUnreachableError, match="cannot be read now, though a good copy may exist"):
            restore_root(root, memory_path / "restored", then, dry_run=dry_run)
    with pytest.raises(NotARootError):
        Root.open(memory_path / "restored")
    (memory_path / "away").rename(root.path / "storage")
    assert restore_root(root, memory_path / "restored", then).missing == ()


def test_a_cursor_is_never_behind_the_end_of_its_topic(root: Root, memory_path: Path) -> None:
    """The clock of a cursor's writer may be late."""
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    root.store.append_cursors([CursorRow(topic_id(root), "s", 0, 1, 1, 1, 2)])
    restore_root(root, memory_path / "restored", datetime.now(UTC))
    restored = Root.open(memory_path / "restored")
    assert [row.entry for row in restored.store.cursors().of(topic_id(root), "s")] == [1]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize(
    "step",
    ["restore_copy", "reachable_cursors", "CopiedRows", "MetadataStore.create", "_replace_cursors", "_append_first"],
)
def test_a_restore_that_was_killed_can_be_repeated(
    root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    early = write_some(root, 1)
    messages.write(root, "t", [b"more"])
    root.store.append_cursors([CursorRow(topic_id(root), "s", 0, 1, 1, 1, 2)])
    late = version(root)
    target = memory_path / "restored"
    for calls in range(3 if step == "restore_copy" else 1):
        with monkeypatch.context() as patched:
            kill_at(patched, step, calls)
            with pytest.raises(Killed):
                restore_root(root, target, late)
        with pytest.raises(NotARootError):
            Root.open(target)
    copied = list(target.glob("storage/*/segments/*/*.arrow"))
    for copy in copied[:1]:
        copy.write_bytes(b"torn")

    done = restore_root(root, target, early)

    restored = Root.open(target)
    assert done.missing == ()
    assert messages.values(restored, "t") == [b"0-%d" % row for row in range(5)]
    assert restored.store.cursors().of(topic_id(root), "s") == ()
    assert restored.status(verify=True).verified_copies == 3


def kill_at(patched: pytest.MonkeyPatch, step: str, calls: int) -> None:
    """Let the process end at the n-th call of a step."""
    left = [calls]
    owner: object = store_module if step.startswith("_") else restore
    if "." in step:
        owner, step = MetadataStore, "create"
    original = getattr(owner, step)

    def call(*given: object, **named: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return original(*given, **named)

    patched.setattr(owner, step, call)


WRITER = """
import sys
from tests.kit import messages
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.files.collect import Ages
from pulsar_on_spark.topic.maintenance.retention.trim import truncate

root = Root.open(sys.argv[1])
number = 0
while True:
    messages.write(root, "t", [str(number).encode()])
    number += 1
    print(number, flush=True)
    if number % 5 == 0:
        root.maintain(Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1))
"""


def test_a_root_that_is_written_to_and_merged_is_restored(
    root: Root, memory_path: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    root.create_topic("t")
    writer = start_python(WRITER, root.path)
    assert writer.stdout is not None
    try:
        for attempt in range(3):
            written = 0
            while written < 7 * (attempt + 1):
                written = int(writer.stdout.readline())
            done = restore_root(root, memory_path / f"restored-{attempt}", datetime.now(UTC))
            assert done.missing == ()
            found = [int(value or b"") for value in messages.values(Root.open(done.target), "t")]
            assert found == list(range(len(found)))
            assert len(found) >= written
    finally:
        writer.kill()
        writer.communicate()


def test_a_brokers_messages_are_restored_from_what_was_sealed_since(memory_path: Path) -> None:
    """Also messages that only its journal had at that time, and no later ones."""
    with RunningBroker(memory_path / "root") as broker:
        client = pulsar.Client(broker.url)
        producer = client.create_producer("t")
        for number in range(100):
            producer.send(b"%d" % number)
        root = Root.open(memory_path / "root")
        at = datetime.now(UTC)
        live = restore_root(root, memory_path / "live", at)
        assert live.unsealed == ("persistent://public/default/t",)
        time.sleep(0.01)  # publish times have milliseconds
        for number in range(100, 200):
            producer.send(b"%d" % number)
        client.close()
        assert broker.stop() == 0
    root.maintain(AT_ONCE)
    done = restore_root(root, memory_path / "restored", at)
    assert (done.missing, done.unsealed) == ((), ())
    restored = Root.open(memory_path / "restored")
    assert restored.store.view().all(IncarnationRecord) == []
    assert all(ledger.closed for ledger in restored.store.view().all(LedgerRecord))
    found = [int(value or b"") for value in messages.values(restored, "t")]
    assert found == list(range(len(found)))
    assert 100 <= len(found) <= 200
    with RunningBroker(restored.path) as broker, closing(pulsar.Client(broker.url)) as client:
        client.create_producer("t").send(b"after")
        consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
        got = [consumer.receive(30_000).data() for _ in range(len(found) + 1)]
    assert got == [*(b"%d" % number for number in found), b"after"]
