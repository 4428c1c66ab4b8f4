"""One run: the steps, each of which may be interrupted, and the check after each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from pulsar_on_spark.model.errors import HistoryTableError, MetadataError, PulsarpyError
from tests.simulators.tiering.interruption import Killed, die, interrupted
from tests.simulators.tiering.oracle import ViolationError
from tests.simulators.tiering.world import World

DIES: Final = "die"
_UPKEEP_OF_FILES: Final = ("merge", "compact", "truncate", "trim", "collect", "housekeep", "repair", "offload")
WORK: Final = (*_UPKEEP_OF_FILES, "build", "keep_up", "retain", "tidy", "forget")
"""The steps whose process may be killed."""
FILES: Final = (
    "publish",
    "seal",
    *_UPKEEP_OF_FILES,
    "wait",
    "lose_copy",
    "leave",
    "come_back",
    "drain",
    "lose_cold",
    "restart",
)
"""The steps that matter to segment files."""
TABLE: Final = (
    "publish",
    "seal",
    "merge",
    "truncate",
    "trim",
    "keep_up",
    "retain",
    "tidy",
    "forget",
    "build_vacuumed",
    "want",
    "unwant",
    "optimize",
    "vacuum",
    "evolve",
    "plan",
    "use",
    "close_ledgers",
    "reopen",
)
"""The steps that matter to the history table."""
MEANWHILE: Final = ("publish", "seal", "evolve", "want", "unwant", "optimize", "wait", "leave", "come_back", *WORK)
"""The steps that another process may take before any change of a step to the disk."""
SHARED: Final = (*WORK, "seal", "drain", "lose_cold")
"""The steps during which it may do so. An incarnation has one sealer."""
WHILE_PLANNED: Final = ("merge", "trim", "truncate", "build", "keep_up", "tidy", "optimize", "collect", "offload")
FREQUENT: Final = ("write", "publish", "seal")


@dataclass(frozen=True, slots=True)
class Step:
    """A step.

    Attributes:
        name: The name of its method of `World`.
        number: Chooses among its variants.
        at: The number of changes to the disk before it is interrupted.
        meanwhile: The step that another process takes there, or `DIES`; empty for none.
    """

    name: str
    number: int = 0
    at: int = 0
    meanwhile: str = ""


def run(folder: Path, steps: Sequence[Step], partitions: int | None = None) -> None:
    """Take steps.

    Raises:
        ViolationError: a reader got something else than it should, or a step failed.
    """
    with closing(World(folder, partitions)) as world:
        for step in steps:
            try:
                _take(world, step)
                world.check()
            except (PulsarpyError, OSError) as error:
                raise ViolationError(f"{step}: {error}") from error
        world.check_end()


def _take(world: World, step: Step) -> None:
    def meanwhile() -> None:
        with world.other_process():
            world.take(step.meanwhile, step.number)

    if step.name == "plan":
        world.plan(meanwhile if step.meanwhile in WHILE_PLANNED else None)
    elif step.meanwhile == DIES and step.name in WORK:
        with suppress(Killed):
            with interrupted(step.at, die):
                world.take(step.name, step.number)
            return
        world.recover(step.name, step.number)
    elif step.meanwhile in MEANWHILE and step.name in SHARED and {step.name, step.meanwhile} != {"seal"}:
        with suppress(*_may_end_with(step)), interrupted(step.at, meanwhile):
            world.take(step.name, step.number)
    else:
        world.take(step.name, step.number)


def _may_end_with(step: Step) -> tuple[type[PulsarpyError], ...]:
    """Return the errors that a step may have because of the step of another process."""
    if step.meanwhile == "forget":
        return (HistoryTableError,)
    # Collections take each write without a verdict for dead here.
    return (MetadataError,) if step.name == "compact" and step.meanwhile in ("collect", "housekeep") else ()


@st.composite
def sequences(draw: st.DrawFn, kinds: Sequence[str] = (), min_size: int = 1, max_size: int = 25) -> list[Step]:
    """Draw the steps of a run.

    Args:
        draw: Draws.
        kinds: The kinds of steps. If there are none, a run has some kinds only, so that all orders of a few come up.
        min_size: The least number of steps.
        max_size: The largest number of steps.
    """
    if not kinds:
        known = draw(st.sampled_from((FILES, TABLE, tuple(dict.fromkeys((*FILES, *TABLE))))))
        kinds = ["build", *draw(st.lists(st.sampled_from(known), min_size=3, max_size=10, unique=True))]
    names = st.sampled_from((*FREQUENT, *kinds))
    others = st.sampled_from(("", "", DIES, *(kind for kind in kinds if kind in MEANWHILE)))
    step = st.builds(Step, names, st.integers(0, 99), st.integers(0, 30), others)
    return draw(st.lists(step, min_size=min_size, max_size=max_size))
