"""`pulsarpy storage` as operators use it: the page on disks, command by command."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_on_spark import cli
from pulsar_on_spark.root import Root
from tests.kit import messages

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
Run = Callable[[str], tuple[int, str, str]]


def commands(heading: str) -> list[str]:
    """The commands below a heading of the page, without comments."""
    section = PAGE.read_text().split(f"### {heading}\n", 1)[1].split("\n### ", 1)[0]
    found = re.findall(r"^\$ pulsarpy (.*?)(?:\s+#.*)?$", section, re.MULTILINE)
    assert found
    return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("PULSARPY_ROOT", raising=False)

    def call(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pulsarpy", *shlex.split(line)])
        code: object = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        assert isinstance(code, int)
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return call


@pytest.fixture
def disks(tmp_path: Path) -> Callable[[str], str]:
    """A root on three disks with messages; the page's names become places of this test."""
    root = Root.create(tmp_path / "my-root", [tmp_path / f"disk{number}" for number in range(3)])
    root.create_topic("t")
    for number in range(3):
        messages.write(root, "t", [str(number).encode()])

    def placed(command: str) -> str:
        return re.sub(r"\s/disk", f" {tmp_path}/disk", command).replace("my-root", str(tmp_path / "my-root"))

    return placed


def test_a_disk_dies(run: Run, disks: Callable[[str], str], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "disk1")
    root = disks("my-root")
    code, out, err = run(f"storage repair {root}")
    assert (code, "no storage path" in err, "disk1" in err) == (1, False, True), "it may be back"
    code, out, _ = run(f"storage list {root}")
    assert (code, "read-only, not reachable" in out) == (0, True)
    for command in commands("A disk dies"):
        assert run(disks(command))[::2] == (0, ""), command
    code, out, _ = run(f"storage check {root}")
    assert (code, "9" in out) == (0, True)
    assert "disk1" in run(f"storage list {root}")[1]
    assert messages.values(Root.open(root), "t") == [b"0", b"1", b"2"]


def test_a_disk_is_replaced(run: Run, disks: Callable[[str], str]) -> None:
    root = disks("my-root")
    for command in commands("A disk is to be replaced"):
        assert run(disks(command))[::2] == (0, ""), command
    found = json.loads(run(f"storage list {root} --json")[1])
    assert [(each["path_id"], each["copies"]) for each in found] == [(1, 3), (2, 3), (3, 3)]
    assert json.loads(run(f"storage check {root} --json")[1])["good"] == 9


def test_problems_of_copies_are_listed_and_repaired(run: Run, disks: Callable[[str], str], tmp_path: Path) -> None:
    root = disks("my-root")
    copies = sorted((tmp_path / "disk0").glob("segments/*/*.arrow"))
    copies[0].unlink()
    copies[1].write_bytes(b"?")
    code, out, _ = run(f"storage check {root} --path 0")
    assert (code, "the copy is missing" in out, "1 bytes instead of" in out) == (1, True, True)
    assert run(f"storage repair {root} --rate 0")[0] == 2
    code, out, err = run(f"storage repair {root} --rate 100")
    assert (code, err, "restored" in out) == (0, "", True)
    assert run(f"storage check {root} --path 0")[0] == 0
    assert "1 copies missing, 1 bad, 2 restored" in run(f"status {root}")[1]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("storage drain 7", "There is no storage path 7"),
        ("storage retire 0", "Storage path 0 is writable and cannot be retired"),
        ("storage check --path 7", "There is no storage path 7"),
        ("storage lost 0", None),
    ],
)
def test_refusals_are_one_sentence(run: Run, disks: Callable[[str], str], command: str, said: str | None) -> None:
    code, _, err = run(f"{command} --root {disks('my-root')}")
    assert (code == 0) == (said is None)
    assert err.count("\n") == (said is not None)
    assert said is None or said in err


def test_copies_without_a_target_path_are_listed(run: Run, disks: Callable[[str], str]) -> None:
    root = disks("my-root")
    assert run(f"storage drain 0 {root}")[0] == 0
    code, _, err = run(f"storage repair {root}")
    assert (code, "3 copies have no storage path left" in err) == (1, True)
    assert run(f"storage resume 0 {root}")[0] == 0
    assert run(f"storage repair {root}")[0] == 0


def test_the_list_says_that_a_cold_path_is_claimed_by_another_copy_of_the_root(run: Run, tmp_path: Path) -> None:
    Root.create(tmp_path / "root")
    assert run(f"storage add {tmp_path}/cold {tmp_path}/root --role cold")[0] == 0
    assert "only read from" not in run(f"storage list {tmp_path}/root")[1]
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    listed = run(f"storage list {tmp_path}/copy")[1]
    assert "writable, only read from" in " ".join(listed.split())
    assert len(re.findall(r"Storage path 3\b", listed)) == 1
    assert "pulsarpy storage resume 3" in listed
    assert json.loads(run(f"storage list {tmp_path}/copy --json")[1])[3]["hold"] == "foreign"
