"""Random sequences of everything that changes files, with kills in moves, against a model of the topics' messages."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.policies.change import set_topic_policies
from pulsar_on_spark.topic.data_path.attach import attach
from pulsar_on_spark.topic.maintenance.compaction.compact import compact
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.files.merge import merge
from pulsar_on_spark.topic.maintenance.maintain import maintain
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import storage_paths, worker
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from pulsar_on_spark.topic.maintenance.retention.trim import trim_topics
from tests.kit import messages
from tests.topic.maintenance.repair.conftest import assert_consistent

STEPS = 60
AT_ONCE = Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1)
TRIM_ALL = {"retention": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}}


class _Killed(BaseException):
    """The process ends here."""


class Scene:
    """A root with two topics that share some files, and the messages that must be in them."""

    def __init__(self, folder: Path, chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = Root.create(folder / "root", [folder / f"disk{number}" for number in range(4)], Quorum(2, 2, 1))
        self.chance = chance
        self.messages: dict[str, list[messages.Message]] = {"a": [], "b": []}
        self.hours = 0
        self._folder = folder
        self._monkeypatch = monkeypatch
        for topic in self.messages:
            self.root.create_topic(topic)
        for number in range(2):
            storage_paths.add(self.root, folder / f"cold{number}", role="cold")

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(hours=self.hours)

    def write(self) -> None:
        topics = self.chance.choice((("a",), ("b",), ("a", "b")))
        rows = {topic: messages.make_rows([b"%d" % self.chance.randrange(1 << 40)] * 3, [b"k"] * 3) for topic in topics}
        write_id = messages.new_write_id()
        attach(self.root.store, write_id, [messages.stage(self.root, rows, write_id)], None)
        for topic in topics:
            found = messages.read(self.root, topic)
            assert found[:-3] == self.messages[topic]
            self.messages[topic] = found

    def offload(self) -> None:
        request = OffloadRequest(TopicName.parse(self.chance.choice("ab")), keep_bytes=self.chance.choice((0, 0, 40)))
        offload(self.root, self.chance.choice((None, request)), now=self.now)

    def killed_offload(self) -> None:
        """Stop a move before or after a random copy or commit of the worker."""
        left = self.chance.randrange(1, 12)

        def counted(work: Callable[..., object]) -> Callable[..., object]:
            def run(*args: object, **kwargs: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    raise _Killed
                return work(*args, **kwargs)

            return run

        with self._monkeypatch.context() as patched:
            for name in ("restore_copy", "_name", "_drop", "_settle_reports"):
                patched.setattr(worker, name, counted(getattr(worker, name)))
            with suppress(_Killed):
                self.offload()

    def wait(self) -> None:
        self.hours += 5

    def trim(self) -> None:
        if self.chance.random() < 0.2:
            topic = TopicName.parse(self.chance.choice("ab"))
            set_topic_policies(self.root, topic, TRIM_ALL)
            trim_topics(self.root)
            set_topic_policies(self.root, topic, {"retention": None})
            self.messages[str(topic.local)] = messages.read(self.root, str(topic.local))

    def lose_a_copy(self) -> None:
        """Delete a copy of a file that has another good one."""
        paths = self.root.current_storage_paths()
        files = [file for file in self.root.store.view().all(FileRecord) if file.replaced_at is None]
        for file in self.chance.sample(files, len(files)):
            there = [each for each in file.copies if paths[PathId(each)].has_segment(file.names[each])]
            if len(there) > 1:
                gone = self.chance.choice(there)
                paths[PathId(gone)].delete_segment(file.names[gone])
                return

    def drain(self) -> None:
        path_id = self.chance.randrange(6)
        storage_paths.drain(self.root, path_id)
        repair(self.root)
        storage_paths.resume(self.root, path_id)

    def lose_a_cold_path(self) -> None:
        """Give a cold path up and bring it back, unless it has the only copies of files."""
        number = self.chance.randrange(2)
        with suppress(InvalidArgumentError):
            storage_paths.give_up(self.root, 4 + number)
            for _ in range(self.chance.randrange(1, 4)):
                self.chance.choice((self.lose_a_copy, self.offload, lambda: repair(self.root)))()
            storage_paths.add(self.root, self._folder / f"cold{number}", role="cold")

    def step(self) -> str:
        steps: dict[str, Callable[[], object]] = {
            "write": self.write,
            "offload": self.offload,
            "killed offload": self.killed_offload,
            "wait": self.wait,
            "trim": self.trim,
            "lose a copy": self.lose_a_copy,
            "drain": self.drain,
            "lose a cold path": self.lose_a_cold_path,
            "merge": lambda: merge(self.root),
            "repair": lambda: repair(self.root),
            "collect": lambda: collect(self.root, AT_ONCE),
            "compact": lambda: compact(self.root, "a"),
        }
        name = self.chance.choice([*steps, "write", "offload", "offload"])
        steps[name]()
        return name

    def check(self) -> None:
        for topic, expected in self.messages.items():
            assert messages.read(self.root, topic) == expected
        assert_consistent(self.root)


@pytest.mark.parametrize("run", range(4))
def test_no_message_is_lost_or_doubled(memory_path: Path, monkeypatch: pytest.MonkeyPatch, run: int) -> None:
    seed = random.randrange(1 << 32)
    scene = Scene(memory_path, random.Random(seed), monkeypatch)
    done = []
    try:
        for _ in range(STEPS):
            done.append(scene.step())
            scene.check()
        scene.hours += 5
        for topic in "ab":
            offload(scene.root, OffloadRequest(TopicName.parse(topic)), now=scene.now)
        repair(scene.root)
        scene.hours += 5
        offload(scene.root, now=scene.now)
        scene.check()
        maintain(scene.root, AT_ONCE)
        maintain(scene.root, AT_ONCE)
        view = scene.root.store.view()
        named = {(path_id, name) for file in view.all(FileRecord) for path_id, name in file.names.items()}
        stored = {
            (int(path_id), stored.name)
            for path_id, path in scene.root.current_storage_paths().items()
            for stored in path.segment_files(0)
        }
        assert stored == named
        cold = [file for file in view.all(FileRecord) if file.is_cold]
        assert all(len(file.copies) == 1 and file.copies[0] >= 4 for file in cold)
        scene.check()
    except BaseException:
        print(f"seed {seed}: {done}")
        raise
