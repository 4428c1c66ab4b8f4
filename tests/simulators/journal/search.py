"""Run seeds until something breaks, or until told to stop; and show how it broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.simulators.journal.profiles import OBJECT_PROFILES, PROFILES
from tests.simulators.journal.run import Run
from tests.simulators.journal.world import Profile

ALL_PROFILES = (*PROFILES, *OBJECT_PROFILES)
LAST_LINES = 60
"""Lines of the trace that a violation shows."""


@dataclass(slots=True)
class Result:
    """The result of a search; `violation` names the profile and seed to run again, and the events before it."""

    runs: int = 0
    steps: int = 0
    events: Counter[str] = field(default_factory=Counter)
    violation: str | None = None


def profile_named(name: str) -> Profile:
    """The profile of this name.

    Raises:
        KeyError: there is none.
    """
    return {profile.name: profile for profile in ALL_PROFILES}[name]


def search(
    first_seed: int, until: Callable[[Result], bool], profile: str | None = None, among: Sequence[Profile] = PROFILES
) -> Result:
    """Run seeds from `first_seed` on until one breaks an invariant or `until` holds.

    Args:
        first_seed: The first seed.
        until: Returns True to stop.
        profile: The only profile.
        among: The profiles that take turns if there is no only one.
    """
    profiles = among if profile is None else (profile_named(profile),)
    result = Result()
    seed = first_seed
    while not until(result):
        chosen = profiles[seed % len(profiles)]
        run = Run(chosen, seed)
        try:
            run.go()
        except Exception as error:  # whatever a core raises is as bad as a broken invariant
            result.violation = f"{type(error).__name__}: {error}\n{_explained(chosen, seed)}"
        result.runs += 1
        result.steps += run.world.steps
        result.events += run.summary()
        if result.violation is not None:
            break
        seed += 1
    return result


def trace_of(profile: str, seed: int) -> list[str]:
    """Every step of one run, with the violation that ended it if there was one."""
    run = Run(profile_named(profile), seed, traced=True)
    try:
        run.go()
    except Exception as error:
        run.world.note(f"VIOLATION {error}")
    assert run.world.trace is not None, "the run is traced"
    return run.world.trace


def _explained(profile: Profile, seed: int) -> str:
    lines = trace_of(profile.name, seed)
    again = f'python -m tests.simulators.journal --trace --profile "{profile.name}" --seed {seed}'
    return "\n".join([f"again: {again}", *lines[-LAST_LINES:]])
