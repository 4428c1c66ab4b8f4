"""System calls that fail under a journal, made by strace: the writer's code is as it runs everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_on_spark.model.ids import IncarnationId
from tests.ledger.journal.journal_runs import Place
from tests.ledger.journal.writing import check

pytestmark = pytest.mark.root

COUNT = 60
SCRIPT = """
import asyncio, sys
from pathlib import Path
from tests.ledger.journal.writing import Writer
asyncio.run(Writer(Path(sys.argv[1]), "traced", Path(sys.argv[1]) / "acks", 20_000).run_to(int(sys.argv[2])))
"""


def traced(base: Path, *options: str, path: int | None = 1) -> list[str]:
    """Run a writer under strace; returns the calls on journal files (of one path) in order."""
    Place(base)  # the root is there
    log = base / "strace"
    only = [] if path is None else ["-P", str(base / f"p{path}" / "journal" / "traced" / "1" / "frames.open")]
    command = ["strace", "-f", "-qq", "--seccomp-bpf", "-y", "-o", str(log), *only, *options]
    run = [*command, sys.executable, "-c", SCRIPT, str(base), str(COUNT)]
    subprocess.run(run, check=True, capture_output=True, timeout=60, cwd=Path(__file__).parents[3])
    return [line for line in log.read_text().splitlines() if "frames." in line]


@pytest.mark.parametrize(
    "fault",
    [
        "fdatasync:error=EIO:when=7",
        pytest.param("fdatasync:error=ENOSPC:when=1", marks=pytest.mark.soak),
        pytest.param("writev:error=ENOSPC:when=5", marks=pytest.mark.long),
        pytest.param("writev:error=EIO:when=1", marks=pytest.mark.soak),
        pytest.param("writev:retval=100:when=6", marks=pytest.mark.long),
        pytest.param("writev:retval=0:when=3", marks=pytest.mark.soak),
    ],
)
def test_a_path_whose_calls_fail_is_given_up_and_nothing_is_lost(tmp_path, fault):
    call = fault.partition(":")[0]
    calls = traced(tmp_path, "-e", "trace=writev,fdatasync", "-e", f"inject={fault}")
    failed = next(place for place, line in enumerate(calls) if "INJECTED" in line)
    assert not [line for line in calls[failed + 1 :] if "writev" in line or "fdatasync" in line], "tried again"
    assert call in calls[failed]
    place = Place(tmp_path, incarnation=IncarnationId("traced"))
    record = place.register.read().record
    assert 1 not in {copy.path for copy in record.fragments[-1].copies}
    assert check("traced", place.log(record), COUNT) == COUNT


def test_a_frame_is_acknowledged_after_an_ack_quorum_has_written_synced_and_looked(tmp_path):
    calls = traced(tmp_path, "-e", "trace=writev,fdatasync,newfstatat,stat,statx,write", path=None)
    assert sum("fdatasync" in line for line in calls) >= 2 * COUNT
    steps: dict[str, list[str]] = {}
    for line in calls:
        found = re.search(r"(\w+)\(.*?(/p\d/journal/traced/\d+)/frames", line)
        if found and "resumed" not in line:
            steps.setdefault(found.group(2), []).append(
                {"newfstatat": "stat", "statx": "stat"}.get(*[found.group(1)] * 2)
            )
    for done in steps.values():
        text = " ".join(done)
        assert re.fullmatch(r"(stat |writev |fdatasync )*(stat|writev|fdatasync)", text)
        rounds = re.findall(r"fdatasync (\w+)", text)
        assert set(rounds) <= {"stat"}, "after each sync comes the look at the name"


@pytest.mark.long
def test_when_all_paths_fail_nothing_more_is_acknowledged(tmp_path):
    """Each thread's seventh fdatasync fails: what was acknowledged before is recovered."""
    Place(tmp_path)
    command = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null"]
    command += ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=7+"]
    run = [*command, sys.executable, "-c", SCRIPT, str(tmp_path), str(COUNT)]
    subprocess.run(run, check=True, capture_output=True, timeout=60, cwd=Path(__file__).parents[3])
    acked = int((tmp_path / "acks").read_text().splitlines()[-1])
    assert 6 <= acked < 30
    place = Place(tmp_path, incarnation=IncarnationId("traced"))
    assert acked <= check("traced", place.log(place.recover()), acked) <= acked + 1
