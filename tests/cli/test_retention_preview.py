"""A new retention says what it deletes; `--dry-run` says so and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages

from .test_app import Run, ok, run  # noqa: F401  (a fixture)

NOTHING = {"topics": 0, "segments": 0, "messages": 0, "bytes": 0}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    """Three topics: one that no subscription holds, one that a subscription holds, one with its own retention."""
    made = Root.create(tmp_path / "root")
    for name, partitions in (("free", 2), ("held", None), ("own", None)):
        made.create_topic(name, partitions)
        for _ in range(2):
            messages.write(made, name, [b"v" * 1000] * (3400 if partitions else 600))
    parts = messages.target(made, "held").parts
    subscriptions.create_subscriptions(made.store, "sub", "Shared", dict.fromkeys(parts, EARLIEST))
    return made


def stored(root: Root) -> dict[str, int]:
    return {topic.name.rpartition("/")[2]: topic.messages for topic in root.status().topics}


def test_the_preview_equals_what_housekeeping_deletes(run: Run, root: Root) -> None:  # noqa: F811
    ok(run("policies", "set-retention", "own", "--time", "7d", root.path))
    for of, flags in (("free", ["--size", "1M"]), ("public/default", ["--size", "1M"])):
        before = stored(root)
        dry = json.loads(ok(run("policies", "set-retention", of, *flags, "--dry-run", "--json", root.path)))
        assert (dry["dry_run"], stored(root)) == (True, before)
        said = json.loads(ok(run("policies", "set-retention", of, *flags, "--json", root.path)))
        assert said == {name: value for name, value in dry.items() if name not in ("dry_run", "deletes")} | (
            {"deletes": dry["deletes"]} if dry["deletes"]["messages"] else {}
        )
        done = root.maintain().trimmed
        assert dry["deletes"] == {
            "topics": done.topics,
            "segments": done.segments,
            "messages": done.messages,
            "bytes": done.bytes,
        }
        after = stored(root)
        assert before["free"] - after["free"] == done.messages == (3400 if of == "free" else 0)
        assert (after["held"], after["own"]) == (1200, 1200)


def test_the_preview_omits_entries_that_are_kept_or_deleted_anyway(run: Run, root: Root) -> None:  # noqa: F811
    def deletes(*arguments: object) -> dict[str, int]:
        found: dict[str, int] = json.loads(ok(run("policies", *arguments, "--dry-run", "--json", root.path)))["deletes"]
        return found

    none = '{"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}'
    assert deletes("set", "held", "retention", none) == NOTHING
    assert deletes("set", "own", "retention", none)["messages"] == 1200
    ok(run("policies", "set", "own", "retention", none, root.path))
    assert deletes("set", "own", "retention", none) == NOTHING
    assert deletes("unset", "own", "retention") == NOTHING
    ok(run("policies", "set-retention", "own", "--size", "-1", root.path))
    said = ok(run("policies", "set", "public/default", "retention", none, root.path))
    assert "With the new one, housekeeping deletes 6,800 messages (6.8 MB) of 2 topics at once." in said
    assert root.maintain().trimmed.messages == 6800
    assert deletes("unset", "own", "retention")["messages"] == 1200
    assert "is unchanged. With the new one" in ok(run("policies", "unset", "own", "retention", "--dry-run", root.path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set", "public/default", "message_ttl", "5", "--dry-run"], "is only for the retention policy on a root"),
        (["set-retention", "public/default", "--dry-run"], "Neither --size nor --time"),
        (["set-retention", "public/absent", "--time", "1d", "--dry-run"], "public/absent does not exist"),
        (["set-retention", "absent", "--time", "1d", "--dry-run"], "does not exist"),
        (["set-retention", "free", "--size", "0", "--dry-run"], "0 both, or neither"),
    ],
)
def test_the_preview_refuses_wrong_arguments(run: Run, root: Root, arguments: list[str], said: str) -> None:  # noqa: F811
    done = run("policies", *arguments, "--root", root.path)
    assert (done.code, done.out, said in done.err, done.err.count("\n")) == (1, "", True, 1)
