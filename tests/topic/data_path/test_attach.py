"""A write is in its topics once and whole, or not at all, despite other writers and retries."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import ClassVar

import pytest

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import (
    IdsRecord,
    LedgerRecord,
    Record,
    SegmentRecord,
    TopicRecord,
    WriteRecord,
    WriterRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import ReplayDiffersError, TopicNotFoundError, TopicTerminatedError, WriteAbortedError
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.data_path.attach import attach
from pulsar_on_spark.topic.data_path.transactions import batch_of, content_of
from tests.kit import messages


def rows(*values: str) -> list[bytes]:
    return [value.encode() for value in values]


def staged(root: Root, topic: str, *values: str, task: int = 0, write_id: str | None = None):
    chosen = messages.new_write_id() if write_id is None else write_id
    return chosen, messages.stage(root, {topic: messages.make_rows(rows(*values))}, chosen, task)


@pytest.fixture
def topic(root: Root) -> str:
    return root.create_topic("t").name


def test_nothing_is_visible_before_the_commit(root: Root, topic: str) -> None:
    write_id, output = staged(root, topic, "a", "b")
    assert messages.read(root, topic) == []
    assert attach(root.store, write_id, [output], None)
    assert messages.values(root, topic) == rows("a", "b")


def test_a_replay_of_the_same_write_changes_nothing(root: Root, topic: str) -> None:
    write_id, output = staged(root, topic, "a")
    assert attach(root.store, write_id, [output], None)
    assert not attach(root.store, write_id, [output], None)
    assert messages.values(root, topic) == rows("a")


def test_a_transaction_is_committed_once(root: Root, topic: str) -> None:
    """A replayed micro-batch is another write of the same rows under the same query and batch."""
    for version in (0, 1, 1, 2):
        write_id, output = staged(root, topic, f"batch {version}")
        attach(root.store, write_id, [output], batch_of("q", version))
    assert messages.values(root, topic) == rows("batch 0", "batch 1", "batch 2")
    assert root.store.key_version(keys.query("q")) == 2


@pytest.mark.parametrize(
    ("first", "second", "is_replay"),
    [("x", "x", True), ("x", "y", False), ("x", None, True), (None, "x", True), (None, None, True)],
)
def test_a_batch_from_other_offsets_is_no_replay(
    root: Root, topic: str, first: str | None, second: str | None, is_replay: bool
) -> None:
    """Of as many messages; where a side doesn't know its offsets, their number decides."""
    write_id, output = staged(root, topic, "a", "b")
    assert attach(root.store, write_id, [output], batch_of("q", 1, first))
    write_id, output = staged(root, topic, "c", "d")
    if is_replay:
        assert not attach(root.store, write_id, [output], batch_of("q", 1, second))
    else:
        with pytest.raises(
            ReplayDiffersError,
            match="Batch 1 of streaming query q is committed with 2 messages, and came again with 2 from other offsets",
        ):
            attach(root.store, write_id, [output], batch_of("q", 1, second))
    assert messages.values(root, topic) == rows("a", "b")


class OlderWriterRecord(Record):
    """`WriterRecord` before it had offsets."""

    kind: ClassVar[str] = "writer"
    writer: str
    version: int
    rows: int
    digest: str

    @property
    def record_id(self) -> str:
        return self.writer


def test_the_batch_of_an_older_program_is_replayed_and_the_next_one_has_offsets(root: Root, topic: str) -> None:
    content, key = content_of([(topic, 1)]), keys.query("q")
    older = OlderWriterRecord(writer=key, version=1, rows=content.rows, digest=content.digest)
    root.store.commit(lambda _: Change(puts=[older], keys={key: 1}))
    again = Root.open(root.path)
    for version, is_new in ((1, False), (2, True)):
        write_id, output = staged(again, topic, f"batch {version}")
        assert attach(again.store, write_id, [output], batch_of("q", version, "x")) == is_new
    (last,) = Root.open(root.path).store.view().all(WriterRecord)
    assert (last.version, last.offsets) == (2, "x")
    assert messages.values(root, topic) == rows("batch 2")


def test_a_terminated_topic_refuses_writes_and_keeps_its_messages(root: Root, topic: str) -> None:
    write_id, output = staged(root, topic, "before")
    late_id, late = staged(root, topic, "after")
    assert attach(root.store, write_id, [output], None)

    def terminate(view: View) -> Change:
        record = view.get(TopicRecord, topic)
        assert record is not None
        return Change(puts=[record.model_copy(update={"terminated": (1, 0)})], keys={keys.topic(topic): None})

    root.store.commit(terminate)
    with pytest.raises(TopicTerminatedError, match="was terminated and takes no messages: write to another topic"):
        attach(root.store, late_id, [late], None)
    assert not attach(root.store, write_id, [output], None), "a replay is none of a write"
    assert messages.values(root, topic) == rows("before")


def test_the_committed_attempt_of_a_task_counts(root: Root, topic: str) -> None:
    write_id = messages.new_write_id()
    _, first = staged(root, topic, "a", "b", write_id=write_id)
    _, second = staged(root, topic, "a", "b", write_id=write_id)
    assert first.files[0].written.file_id != second.files[0].written.file_id
    attach(root.store, write_id, [second], None)
    assert messages.values(root, topic) == rows("a", "b")


def test_order_is_that_of_tasks(root: Root, topic: str) -> None:
    write_id = messages.new_write_id()
    outputs = [staged(root, topic, f"task {task}", task=task, write_id=write_id)[1] for task in (2, 0, 1)]
    attach(root.store, write_id, outputs, None)
    assert messages.values(root, topic) == rows("task 0", "task 1", "task 2")


def test_an_empty_write_commits_nothing(root: Root, topic: str) -> None:
    before = root.store.view().version
    assert not attach(root.store, messages.new_write_id(), [messages.stage(root, {}, messages.new_write_id())], None)
    assert root.store.view().version == before


def test_entries_are_dense_in_one_ledger(root: Root, topic: str) -> None:
    for number in range(4):
        messages.write(root, topic, rows(*(f"{number}-{row}" for row in range(3))), [b"k1", b"k2", b"k3"])
    ids = [message.id for message in messages.read(root, topic)]
    assert {each.ledger for each in ids} == {1}
    assert [each.entry for each in ids] == list(range(12))
    assert len(root.store.view().all(LedgerRecord)) == 1


def test_a_later_ledger_ends_an_attached_one_for_good(root: Root, topic: str) -> None:
    """If a broker's ledger follows, the next write gets a ledger behind it."""
    messages.write(root, topic, rows("a"))
    topic_id = messages.target(root, topic).parts[0].topic_id
    opened = LedgerRecord(
        topic_id=topic_id, ledger_id=2, incarnation="b", closed=True, entries=0, created_at=datetime.now(UTC)
    )
    root.store.commit(
        lambda _: Change(puts=[opened, IdsRecord(next_ledger_id=3)], keys={keys.topic(topic): None, keys.IDS: None})
    )
    messages.write(root, topic, rows("b"))
    assert [ledger.ledger_id for ledger in root.store.view().all(LedgerRecord)] == [1, 2, 3]
    assert messages.values(root, topic) == rows("a", "b")


@pytest.mark.parametrize("recreated", [False, True])
def test_a_topic_that_was_deleted_meanwhile(root: Root, topic: str, recreated: bool) -> None:
    root.create_topic("other")
    write_id = messages.new_write_id()
    made = {topic: messages.make_rows(rows("a")), "other": messages.make_rows(rows("o"))}
    output = messages.stage(root, made, write_id)
    root.delete_topic(topic)
    if recreated:
        root.create_topic(topic)
    with pytest.raises(TopicNotFoundError, match=f"{topic} was deleted while"):
        attach(root.store, write_id, [output], None)
    assert messages.read(root, "other") == []
    assert root.store.view().all(WriteRecord) == []


def test_an_aborted_write_never_commits(root: Root, topic: str) -> None:
    write_id, output = staged(root, topic, "a")
    verdict = WriteRecord(write_id=write_id, status="aborted")
    root.store.commit(lambda _: Change(puts=[verdict], keys={keys.write_bucket(write_id): None}))
    with pytest.raises(WriteAbortedError, match="write again"):
        attach(root.store, write_id, [output], None)
    assert messages.read(root, topic) == []


def test_one_write_on_many_topics_is_one_commit(root: Root) -> None:
    names = [root.create_topic(f"t{number}", partitions=2).name for number in range(5)]
    write_id = messages.new_write_id()
    before = root.store.view().version
    made = {name: messages.make_rows(rows("a", "b")) for name in names}
    attach(root.store, write_id, [messages.stage(root, made, write_id)], None)
    view = root.store.view()
    assert view.version == before + 1
    assert len({segment.file_id for segment in view.all(SegmentRecord)}) == 1
    assert all(sorted(messages.values(root, name)) == rows("a", "b") for name in names)


WRITER = """
import sys
from pathlib import Path
from tests.kit import messages
from pulsar_on_spark.root import Root
root = Root.open(sys.argv[1])
for number in range(int(sys.argv[3])):
    messages.write(root, "t", [f"{sys.argv[2]}-{number}-{row}".encode() for row in range(5)])
"""


@pytest.mark.long
def test_several_processes_on_one_topic(
    root: Root, topic: str, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    """Ids are dense, nothing is lost or doubled, each write is whole, and each writer's order is kept."""
    writes = 15
    started = [start_python(WRITER, root.path, name, writes) for name in "abcd"]
    assert [process.wait(timeout=120) for process in started] == [0] * 4

    found = messages.read(root, topic)
    texts = [message.value.decode() for message in found if message.value is not None]
    assert [message.id.entry for message in found] == sorted(message.id.entry for message in found)
    assert {message.id.entry for message in found} == set(range(4 * writes))
    assert Counter(texts) == Counter(f"{w}-{n}-{r}" for w in "abcd" for n in range(writes) for r in range(5))
    for writer in "abcd":
        own = [text for text in texts if text.startswith(writer)]
        assert own == [f"{writer}-{number}-{row}" for number in range(writes) for row in range(5)]
