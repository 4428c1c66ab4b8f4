"""The protocol as it is, under many seeds; and that a seed means a run."""

import os
import subprocess
import sys

import pytest

from tests.kit.seeds import first_seed
from tests.simulators.journal.profiles import OBJECT_PROFILES
from tests.simulators.journal.search import ALL_PROFILES, search, trace_of

TRACE = "from tests.simulators.journal.search import trace_of; print(*trace_of({!r}, 7), sep='\\n')"


@pytest.mark.parametrize("runs", [300, pytest.param(4_000, marks=pytest.mark.long)])
def test_no_invariant_breaks_and_runs_reach_their_events(runs: int) -> None:
    """`make simulate` runs for an hour."""
    seed = first_seed()

    result = search(seed, until=lambda so_far: so_far.runs >= runs)

    assert result.violation is None, result.violation
    least = {
        "CLOSED": runs * 9 // 10,
        "acknowledged": runs,
        "ended runs": runs // 10,
        "fenced": runs // 10,
        "fragments": runs,
        "passes that saw a hole": 1,
        "pruned runs": runs // 10,
        "read": runs,
        "recovered above the LAC": runs // 10,
        "sealed": runs,
        "shrunk": runs // 50,
        "stopped recoveries": runs // 20,
        "trimmed runs": runs // 50,
    }
    assert {name: result.events[name] for name, count in least.items() if result.events[name] < count} == {}


@pytest.mark.parametrize("runs", [200, pytest.param(4_000, marks=pytest.mark.long)])
def test_no_invariant_breaks_on_object_stores(runs: int) -> None:
    seed = first_seed()

    result = search(seed, until=lambda so_far: so_far.runs >= runs, among=OBJECT_PROFILES)

    assert result.violation is None, result.violation
    least = {
        "CLOSED": runs * 8 // 10,
        "acknowledged": runs,
        "fenced": runs // 10,
        "pruned runs": runs // 20,
        "recovered above the LAC": runs // 10,
        "sealed": runs,
        "stopped recoveries": runs // 20,
        "trimmed runs": runs // 50,
    }
    assert {name: result.events[name] for name, count in least.items() if result.events[name] < count} == {}


@pytest.mark.parametrize("profile", [profile.name for profile in ALL_PROFILES])
def test_same_seed_gives_the_same_trace(profile: str) -> None:
    assert trace_of(profile, 7) == trace_of(profile, 7)
    assert trace_of(profile, 7) != trace_of(profile, 8)


def test_same_seed_gives_the_same_trace_in_another_process() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-c", TRACE.format("mixed")],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert traces[0].count(b"\n") > 100
