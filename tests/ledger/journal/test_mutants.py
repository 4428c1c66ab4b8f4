"""Each rule of the protocol, broken: the simulator must notice within a bounded number of seeds."""

import pytest

from pulsar_on_spark.testing.journal_sim.search import search
from tests.ledger.journal.mutants import CONSEQUENCES, MUTANTS, Mutant

MAX_RUNS = 6000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_simulator_catches_the_broken_rule(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    require_caught(mutant, monkeypatch)


@pytest.mark.parametrize("mutant", CONSEQUENCES, ids=lambda mutant: mutant.name)
def test_simulator_catches_what_follows(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    require_caught(mutant, monkeypatch)


def require_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, broken in mutant.patches:
        assert hasattr(owner, name), f"{name} is a rule of its own"
        monkeypatch.setattr(owner, name, broken)

    result = search(1, until=lambda so_far: so_far.runs >= MAX_RUNS, profile=mutant.profile)

    assert result.violation is not None, f"{mutant.name} survived {result.runs} runs"
    assert result.violation.startswith("ViolationError: "), result.violation
