"""Each rule of the protocol, broken: the simulator must notice within a bounded number of seeds."""

import pytest

from tests.kit.seeds import first_seed
from tests.ledger.journal.mutants import CONSEQUENCES, MUTANTS, Mutant
from tests.ledger.journal.object_mutants import OBJECT_CONSEQUENCES, OBJECT_MUTANTS, ON_OBJECTS
from tests.simulators.journal.search import search

MAX_RUNS = 6000
FIRST_SEED = {
    ("acks behind the end of a close", "closing"): 2800,
    ("an unfenced path's no", "consequences"): 850,
    ("#2614: reads do not fence", "consequences"): 850,
    ("add after fence", "consequences on disks"): 450,
    ("a torn frame read as the end", "consequences on disks"): 1100,
    ("amnesia: a missing file says no", "consequences on disks"): 325,
    ("a file forgotten before it is deleted", "trimming"): 225,
    ("a close that leaves the seal key", "sealing"): 475,
    ("a torn frame is a no at once", "disks"): 800,
    ("an unfenced path's no", "two copies"): 325,
    ("ledgers end before all is sealed", "sealing"): 300,
    ("metadata read before the journal", "sealing"): 750,
    ("what is unknown is lost", None): 1020,
    ("the fence behind the listing's end", "objects, consequences"): 4790,
    ("a number that is taken is a fence", "objects, consequences"): 560,
    ("an unfenced no", "objects recovered"): 860,
    ("other bytes after an error", "objects, consequences"): 140,
}
"""The first seed for a rule that few runs meet: a few runs before the one that a search from seed 1 finds."""


@pytest.mark.long
@pytest.mark.parametrize("mutant", [*MUTANTS, *OBJECT_MUTANTS], ids=lambda mutant: mutant.name)
def test_simulator_catches_the_broken_rule(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    require_caught(mutant, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("mutant", ON_OBJECTS, ids=lambda mutant: mutant.name)
def test_rules_of_both_kinds_of_files_are_caught_on_object_stores(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_caught(mutant, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("mutant", [*MUTANTS, *OBJECT_MUTANTS], ids=lambda mutant: mutant.name)
def test_simulator_catches_the_broken_rule_from_any_seed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    require_caught(mutant, monkeypatch, first_seed(), 10 * MAX_RUNS)


@pytest.mark.long
@pytest.mark.parametrize("mutant", [*CONSEQUENCES, *OBJECT_CONSEQUENCES], ids=lambda mutant: mutant.name)
def test_the_simulator_catches_each_mutant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    require_caught(mutant, monkeypatch)


def require_caught(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, seed: int | None = None, most_runs: int = MAX_RUNS
) -> None:
    first_seed = FIRST_SEED.get((mutant.name, mutant.profile), 1) if seed is None else seed
    for owner, name, broken in mutant.patches:
        assert hasattr(owner, name), f"{name} is a rule of its own"
        monkeypatch.setattr(owner, name, broken)

    result = search(first_seed, until=lambda so_far: so_far.runs >= most_runs, profile=mutant.profile)

    assert result.violation is not None, f"{mutant.name} survived {result.runs} runs from seed {first_seed} on"
    assert result.violation.startswith("ViolationError: "), result.violation
