"""Any sequence of writes, seals, merges, trims, cold moves, builds, crashes, and a user's OPTIMIZE and VACUUM.

After each step, `history()` and the topic have exactly the messages of a model, each once, with its id.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.history_table.mutants import MUTANTS, Mutant
from tests.kit.seeds import first_seed
from tests.simulators.tiering.oracle import ViolationError
from tests.simulators.tiering.run import DIES, Step, run, sequences

Folders = Callable[[], TemporaryDirectory[str]]
UNHURRIED = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def folders(memory_folder: Path) -> Folders:
    gc.collect()
    return lambda: TemporaryDirectory(dir=memory_folder, ignore_cleanup_errors=True)


def check(folders: Folders, partitions: int | None, examples: int) -> None:
    @seed(first_seed())
    @settings(UNHURRIED, max_examples=examples)
    @given(steps=sequences(min_size=8))
    def search(steps: list[Step]) -> None:
        with folders() as folder:
            run(Path(folder), steps, partitions)

    search()


@pytest.mark.parametrize("partitions", [None, 2])
def test_a_reader_gets_each_message_once(folders: Folders, partitions: int | None) -> None:
    check(folders, partitions, 15)


@pytest.mark.long
@pytest.mark.parametrize("meanwhile", [DIES, "build", "trim", "tidy", "optimize", "forget", "evolve"])
def test_a_build_is_interrupted_before_each_of_its_changes(folders: Folders, meanwhile: str) -> None:
    steps = [step for at in range(36) for step in (Step("write"), Step("build", at=at, meanwhile=meanwhile))]
    with folders() as folder:
        run(Path(folder), [Step("want"), *steps])


@pytest.mark.long
@pytest.mark.parametrize("partitions", [None, 2])
def test_a_reader_gets_each_message_once_in_many_runs(folders: Folders, partitions: int | None) -> None:
    check(folders, partitions, 150)


@pytest.mark.soak
@pytest.mark.parametrize("partitions", [None, 3])
def test_a_reader_gets_each_message_once_in_thousands_of_runs(folders: Folders, partitions: int | None) -> None:
    check(folders, partitions, 2_000)


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_simulator_catches_the_broken_rule(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, mutant: Mutant
) -> None:
    monkeypatch.setattr(mutant.owner, mutant.attribute, mutant.broken)

    caught: list[ViolationError] = []

    @seed(first_seed())
    @settings(UNHURRIED, max_examples=200, phases=[Phase.generate])
    @given(steps=sequences(mutant.kinds, min_size=18))
    def search(steps: list[Step]) -> None:
        if not caught:
            with folders() as folder:
                try:
                    run(Path(folder), steps)
                except ViolationError as error:
                    caught.append(error)

    search()
    assert caught
