"""The promises of the metadata's log in simulated runs, and the rules without which they do not hold."""

from __future__ import annotations

import pytest

from pulsar_on_spark.metadata.log.chain import OvertakenError
from tests.kit.seeds import first_seed
from tests.metadata.log.mutants import MUTANTS, Mutant
from tests.simulators.metadata.run import ViolationError, run

FIRST_SEED = {"a commit that is not found has failed": 92}
"""The first seed for a rule that few runs meet: a few runs before the one that a search from seed 1 finds."""


def test_the_promises_hold() -> None:
    for seed in range(1, 25):
        run(seed)


def test_the_promises_hold_for_processes_that_read_ahead() -> None:
    for seed in range(1, 13):
        run(seed, at_once=3)


def test_checkpoints_that_are_cleaned_up_while_they_are_read_are_no_damage() -> None:
    run(388_859_892_202)


@pytest.mark.long
def test_the_promises_hold_in_many_runs() -> None:
    first = first_seed()
    zombies = 0
    for seed in range(first, first + 300):
        world, _ = run(seed, at_once=1 + seed % 3)
        zombies += len(world.zombies)
    assert zombies > 3, "entries under numbers that were cleaned up are what the chain is for"


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_simulator_catches_the_broken_rule(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.owner, mutant.attribute, mutant.broken)
    first = FIRST_SEED.get(mutant.name, 1)
    for seed in range(first, first + 30):
        try:
            run(seed)
        except (ViolationError, OvertakenError):  # a file that a reader needs may be missing for good
            return
    raise AssertionError(f"{mutant.name} survived 30 runs from seed {first} on")
