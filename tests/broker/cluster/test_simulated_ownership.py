"""The rules of ownership and takeover in simulated runs, and what happens without each of them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.broker.cluster.mutants import MUTANTS, Mutant
from tests.kit.seeds import first_seed
from tests.simulators.cluster.oracle import ViolationError
from tests.simulators.cluster.run import Run

MAX_RUNS = 300
FIRST_SEED = {"a topic is loaded while its bundle is given": 195}
"""The first seed for a rule that few runs meet: a few runs before the one that a search from seed 1 finds."""


@pytest.mark.parametrize("runs", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_each_bundle_has_one_owner_and_is_served(runs: int) -> None:
    first = first_seed()
    events: Counter[str] = Counter()
    for seed in range(first, first + runs):
        run = Run(seed)
        try:
            run.go()
        except ViolationError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        events += run.events
    least = {
        "published": 5 * runs,
        "unloaded": runs,
        "killed": runs // 4,
        "split": runs // 4,
        "paused": runs // 4,
        "paused all": runs // 10,
        "reads_fail": runs // 10,
        "writes_fail": runs // 10,
        "cut off": runs // 10,
        "stopped": runs // 10,
    }
    assert {name: events[name] for name, count in least.items() if events[name] < count} == {}


@pytest.mark.parametrize("seed", [49006698148, 49006701151])
def test_an_observer_whose_own_lease_was_late_between_two_looks_recovers_no_journal(seed: int) -> None:
    """Writes failed for a bit more than half a lease, and the observer looked before and after that."""
    Run(seed).go()


def test_the_same_seed_gives_the_same_run() -> None:
    one, two = Run(7), Run(7)
    one.go()
    two.go()
    assert (one.events, one.world.scheduler.now_s) == (two.events, two.world.scheduler.now_s)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_simulator_catches_the_broken_rule(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, broken in mutant.patches:
        assert hasattr(owner, name), f"{name} is a rule of its own"
        monkeypatch.setattr(owner, name, broken)
    first = FIRST_SEED.get(mutant.name, 1)
    for seed in range(first, first + MAX_RUNS):
        try:
            Run(seed).go()
        except ViolationError:
            return
    raise AssertionError(f"{mutant.name} survived {MAX_RUNS} runs")
