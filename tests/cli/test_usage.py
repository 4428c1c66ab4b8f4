"""`pulsarpy usage`: each byte on the storage paths has a reason."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.maintenance.retention.trim import trim_some, truncate
from pulsar_on_spark.topic.maintenance.usage import Reason, RootUsage, usage
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages
from tests.kit.running_incarnation import RunningIncarnation
from tests.kit.waiting import wait_until

from .test_app import Run, ok, run  # noqa: F401  (a fixture)


def files_on(path: Path) -> int:
    """Bytes of segment and journal files, as `du` counts them."""
    return sum(file.stat().st_size for name in ("segments", "journal") for file in (path / name).rglob("*.*"))


def by_reason(found: RootUsage) -> Counter[str]:
    total: Counter[str] = Counter()
    for path in found.paths:
        total.update(path.by_reason)
    return total


def topics(found: RootUsage) -> dict[str, tuple[int, int, int]]:
    return {
        each.name.rpartition("/")[2]: (each.message_bytes, each.stored_bytes, each.unsealed_bytes)
        for each in found.topics
    }


def test_every_byte_has_a_reason(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    for topic in ("merged", "kept", "deleted", "live"):
        root.create_topic(topic)
    for value in (b"a" * 1000, b"b" * 1000):
        messages.write(root, "merged", [value])
    messages.write(root, "kept", [b"c" * 50_000])
    messages.write(root, "deleted", [b"d" * 9000])
    root.maintain()
    root.delete_topic("deleted", force=True)
    uncommitted(root, "kept")
    with RunningIncarnation(root) as broker:
        broker.send("live", [b"e" * 3000] * 4)
        wait_until(lambda: topics(usage(root))["live"][0] >= 12_000, "what was sent is shown to readers")
        found = usage(root)
        assert [path.bytes for path in found.paths] == [files_on(path.directory) for path in found.paths]
        assert [sum(path.by_reason.values()) for path in found.paths] == [path.bytes for path in found.paths]
        reasons = by_reason(found)
        assert set(reasons) == {
            each.value for each in (Reason.TOPICS, Reason.REPLACED, Reason.UNCOMMITTED, Reason.UNSEALED)
        }
        assert reasons[Reason.UNSEALED.value] >= 3 * 12_000
        assert sum(each.stored_bytes for each in found.topics) == reasons[Reason.TOPICS.value]
        by_name = topics(found)
        assert next(iter(by_name)) == "kept"
        assert by_name["merged"][0] == 2000
        assert by_name["live"][0] == by_name["live"][2]
        assert found.metadata_bytes == sum(
            file.stat().st_size for file in (root.path / "metadata").rglob("*") if file.is_file()
        )
        broker.stop()
    root.maintain()
    found = usage(root)
    assert Reason.UNSEALED.value not in by_reason(found)
    assert topics(found)["live"][1] > 0
    assert topics(found)["live"][2] == 0


def uncommitted(root: Root, topic: str) -> None:
    """Write a file of a task whose driver does not commit."""
    before = set(root.path.glob("storage/*/segments/*/*"))
    messages.write(root, topic, [b"u" * 100])
    view = root.store.view()
    written = {file.stem for file in set(root.path.glob("storage/*/segments/*/*")) - before}
    assert len(written) == 1
    (file_id,) = written
    assert view.get(FileRecord, file_id) is not None
    for file in root.path.glob(f"storage/*/segments/*/{file_id}.*"):
        shutil.copy(file, file.with_name(file.name.replace(file_id, f"{'f' * 32}-0")))


def test_files_that_topics_share_are_divided(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    for topic in ("large", "small"):
        root.create_topic(topic)
    with RunningIncarnation(root) as broker:
        for _ in range(3):
            broker.send("large", [b"l" * 900])
            broker.send("small", [b"s" * 90])
        broker.stop()
    root.maintain()
    found = usage(root)
    by_name = topics(found)
    assert by_name["large"][1] > 3 * by_name["small"][1] > 0
    assert abs(by_name["large"][1] + by_name["small"][1] - by_reason(found)[Reason.TOPICS.value]) <= 6


def test_trimmed_messages_in_shared_files_are_counted(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("parts", 2)
    messages.write(root, "parts", [b"x" * 1000] * 200)
    whole = by_reason(usage(root))[Reason.TOPICS.value]
    first = TopicName.parse("parts").partition(0)
    view = root.store.view()
    end = chain.read_limit(view, catalog.require_topic(view, first).topic_id)
    truncate(root.store, first, end)
    trim_some(root.store, [first.full])
    left = by_reason(usage(root))
    assert left[Reason.TRIMMED.value] + left[Reason.TOPICS.value] == whole
    assert whole * 0.4 < left[Reason.TRIMMED.value] < whole * 0.6
    assert topics(usage(root))["parts"][1] == left[Reason.TOPICS.value]


def test_usage_is_shown(run: Run, tmp_path: Path) -> None:  # noqa: F811
    root = Root.create(tmp_path / "root")
    for number in range(3):
        root.create_topic(f"t{number}")
        messages.write(root, f"t{number}", [b"v" * 1000 * (number + 1)] * 5)
        parts = messages.target(root, f"t{number}").parts
        subscriptions.create_subscriptions(root.store, "sub", "Shared", dict.fromkeys(parts, EARLIEST))
    shown = ok(run("usage", root.path, "--top", 2))
    for text in ("messages of topics", "Topics, the first 2 of 3", "15.0 kB", "10.0 kB", "of metadata"):
        assert text in shown
    assert "t0" not in shown
    found = json.loads(ok(run("usage", "--json", root.path)))
    assert [each["name"].rpartition("/")[2] for each in found["topics"]] == ["t2", "t1", "t0"]
    assert [each["backlog_bytes"] for each in found["subscriptions"]] == [15_000, 10_000, 5_000]
    shutil.rmtree(root.path / "storage" / "1")
    assert "storage/1" in " ".join(ok(run("usage", root.path)).split())
    found = json.loads(ok(run("usage", "--json", root.path)))
    assert [bool(path["problem"]) for path in found["paths"]] == [False, True, False]
    messages.write(root, "t0", [b"w" * 1000])
    stats = json.loads(ok(run("topics", "internal-stats", "t0", "--json", root.path)))
    assert [each["size"] for ledger in stats["ledgers"] for each in ledger["segments"]] == [5000, 1000]
    assert "6.0 kB" in ok(run("topics", "internal-stats", "t0", root.path))
