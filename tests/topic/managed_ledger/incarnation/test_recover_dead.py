"""Recovering dead brokers by hand, and giving up paths that are lost: with real incarnations that were killed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from pulsar_on_spark import cli
from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.managed_ledger.incarnation.recover_dead import recover_dead
from tests.kit.running_incarnation import RunningIncarnation

LEASE_S = 1.0
TOPIC = "persistent://public/default/t"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    made.create_topic("t")
    return made


def dead(root: Root) -> str:
    """An incarnation that was killed with an open ledger of ten entries."""
    broker = RunningIncarnation(root, lease_duration_s=LEASE_S)
    broker.send("t", [b"%d" % number for number in range(10)])
    broker.kill()
    return broker.incarnation.id


def journal_files(root: Root, path: int) -> list[Path]:
    return sorted((root.path / "storage" / str(path)).glob("journal/*/1/frames.*"))


def lose_and_tear(root: Root) -> None:
    """A power cut leaves half of the last frame on path 1, nothing of it on path 2; the disk of path 0 is lost."""
    (half,), (none,) = journal_files(root, 1), journal_files(root, 2)
    os.truncate(none, half.stat().st_size - 600)
    os.truncate(half, half.stat().st_size - 8)
    shutil.rmtree(root.path / "storage" / "0")


def record(root: Root, incarnation: str) -> IncarnationRecord:
    found = root.store.view().get(IncarnationRecord, incarnation)
    assert found is not None
    return found


def test_dead_incarnations_are_recovered_and_living_ones_left_alone(root: Root) -> None:
    gone = dead(root)
    with RunningIncarnation(root, lease_duration_s=LEASE_S) as alive:
        found = {each.incarnation: each for each in recover_dead(root)}

        assert found[gone].outcome == "recovered"
        assert found[gone].topics == (TOPIC,)
        assert found[gone].last_frame == record(root, gone).last_frame is not None
        assert found[alive.incarnation.id].outcome == "alive"
        assert record(root, alive.incarnation.id).state == "OPEN"
        (again,) = recover_dead(root, gone)
        assert again.outcome == "closed"


def test_a_living_incarnation_keeps_its_paths(root: Root) -> None:
    with RunningIncarnation(root, lease_duration_s=LEASE_S) as alive:
        (found,) = recover_dead(root, alive.incarnation.id, [0])
        assert found.outcome == "alive"
        assert record(root, alive.incarnation.id).state == "OPEN"


def test_paths_are_given_up_only_if_necessary(root: Root) -> None:
    gone = dead(root)
    (found,) = recover_dead(root, gone, [1])
    assert (found.outcome, found.given_up) == ("recovered", ())


def test_the_paths_to_give_up_are_named(root: Root) -> None:
    gone = dead(root)
    with pytest.raises(InvalidArgumentError, match="name an incarnation"):
        recover_dead(root, None, [0])
    with pytest.raises(InvalidArgumentError, match="no broker incarnation 'x'"):
        recover_dead(root, "x", [0])
    with pytest.raises(InvalidArgumentError, match="Storage path 7 has no journal file"):
        recover_dead(root, gone, [7])


def test_giving_up_paths_again_finds_the_journal_closed(root: Root) -> None:
    """Acknowledged frames were written to new files: the record names no file on the paths that were given up."""
    gone = dead(root)
    for path in (0, 1):
        shutil.rmtree(root.path / "storage" / str(path) / "journal" / gone)
    storage_paths.add(root, root.path.parent / "spare")
    (found,) = recover_dead(root, gone, [0, 1])
    assert found.outcome == "closed with losses"
    (again,) = recover_dead(root, gone, [0, 1])
    assert (again.outcome, again.given_up) == ("closed", (0, 1))


def test_the_command_lists_possible_losses_and_requires_confirmation(
    root: Root, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: object) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["pulsarpy", "recover", str(root.path), *map(str, arguments)])
        code: object = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return code or 0, said.out + said.err

    gone = dead(root)
    lose_and_tear(root)

    code, said = run()
    assert code == 1
    assert "not recovered" in said
    assert "give up those that are lost for good (`pulsarpy recover --give-up-path`)" in said
    code, said = run("--give-up-path", 0)
    assert (code, "name it with --incarnation" in said) == (1, True)
    code, said = run("--incarnation", gone, "--give-up-path", 0)
    assert code == 1
    assert "Giving up storage path 0 may lose acknowledged entries" in said
    assert f"in the topics {TOPIC}." in said
    assert record(root, gone).state == "IN_RECOVERY"

    code, said = run("--incarnation", gone, "--give-up-path", 0, "--yes")
    assert code == 0, said
    assert "closed with losses" in said
    assert record(root, gone).state == "CLOSED"
    assert record(root, gone).given_up_paths == (0,)
    code, said = run()
    assert (code, "Broker incarnations: none" in said) == (0, True)
