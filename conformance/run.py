"""`make conformance`: run the official suites, print what did not pass, write docs/conformance.md and its JSON."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.brokers import BrokerMissingError, IsRunning, our_broker, real_pulsar, resolve_pulsar
from conformance.network import PortsTakenError, claim_network
from conformance.outcomes import Outcome
from conformance.record import SIDES, Outcomes, Record, Side
from conformance.report import print_outcomes, write_page
from conformance.suites import SUITES, Suite, SuiteMissingError, Test

HOUSE: Final = Path(__file__).parent.parent
BROKERS: Final[dict[Side, Callable[[Suite, Path], AbstractContextManager[IsRunning]]]] = {
    "ours": our_broker,
    "pulsar": real_pulsar,
}


def main(
    suite: Annotated[list[str] | None, typer.Option(help="Run only this suite (may be repeated).")] = None,
    broker: Annotated[str, typer.Option(help="The broker: ours, or pulsar for a real Pulsar 4.2.4.")] = "ours",
    only: Annotated[str | None, typer.Option(help="Try only tests that this pattern matches; writes nothing.")] = None,
    work: Annotated[Path, typer.Option(help="Folder for data, binaries and each test's output.")] = HOUSE
    / "conformance-work",
    docs: Annotated[Path, typer.Option(help="Folder for conformance.md and conformance.json.")] = HOUSE / "docs",
) -> None:
    """Run the official suites of Pulsar's clients against a broker."""
    # A shell starts its background jobs with SIGINT ignored, and tests that interrupt themselves would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console = Console()
    chosen = _chosen(suite)
    side = next((each for each in SIDES if each == broker), None)
    if side is None:
        raise typer.BadParameter(f"no broker {broker}: there are {', '.join(SIDES)}")
    work = work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    fallen: list[str] = []
    try:
        found = {each.name: _matching(each.find(work), only) for each in chosen}
        if side == "pulsar":
            resolve_pulsar(work)
        claim_network()
        for each in chosen:
            outcomes = _run(each, found[each.name], side, work, console)
            print_outcomes(each.name, outcomes, console)
            if only is None:
                fallen += _recorded(each.name, side, outcomes, docs)
    except (SuiteMissingError, PortsTakenError, BrokerMissingError) as error:
        console.print(str(error), markup=False)
        raise typer.Exit(2) from error
    if fallen:
        console.print("\n".join(["Passed in conformance.json, and not in this run:", *fallen]), markup=False)
        raise typer.Exit(1)


def _recorded(suite: str, side: Side, outcomes: Outcomes, docs: Path) -> list[str]:
    """Record a suite's outcomes unless our broker fell below the record; returns the tests that no longer pass."""
    record = Record.load(docs / "conformance.json")
    fallen = record.fallen(suite, side, outcomes) if side == "ours" else []
    if not fallen:
        record.put(suite, side, outcomes)
        record.save(docs / "conformance.json")
        write_page(record, docs / "conformance.md")
    return [f"{suite}: {test}" for test in fallen]


def _chosen(names: Sequence[str] | None) -> list[Suite]:
    unknown = set(names or ()) - set(SUITES)
    if unknown:
        raise typer.BadParameter(f"no suite {', '.join(sorted(unknown))}: there are {', '.join(SUITES)}")
    return [SUITES[name] for name in names or SUITES]


def _matching(tests: Sequence[Test], only: str | None) -> list[Test]:
    return [test for test in tests if only is None or re.search(only, test.name)]


def _run(suite: Suite, tests: Sequence[Test], side: Side, work: Path, console: Console) -> Outcomes:
    """Run each test, and those that may be repeated again with a fresh broker."""
    folder = work / suite.name / side
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcomes = _run_once(suite, tests, side, folder, console, suite.name)
    again = [test for test in tests if outcomes[test.name].may_be_repeated]
    if again:
        for name, outcome in _run_once(suite, again, side, folder, console, f"{suite.name}, again").items():
            outcomes[name] = outcome.after(outcomes[name])
    return outcomes


def _run_once(
    suite: Suite, tests: Sequence[Test], side: Side, folder: Path, console: Console, description: str
) -> Outcomes:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    outcomes: Outcomes = {}
    with (
        BROKERS[side](suite, folder) as is_running,
        Progress(*columns, TextColumn("{task.fields[test]}"), console=console) as progress,
    ):
        bar = progress.add_task(description, total=len(tests), test="")
        for test in tests:
            progress.update(bar, test=test.name)
            outcomes[test.name] = _outcome(suite, test, folder, is_running)
            progress.advance(bar)
    return outcomes


def _outcome(suite: Suite, test: Test, folder: Path, is_running: IsRunning) -> Outcome:
    code, said = run_alone(test)
    with (folder / f"{test.name}.log").open("a") as log:
        log.write(said)
    if not is_running():
        raise BrokerMissingError(f"The broker ended while {test.name} ran: see the logs in {folder}.")
    return suite.judge(code, said)


def run_alone(test: Test) -> tuple[int | None, str]:
    """Run a test in its own process group; return its exit code, or None at its time limit."""
    process = subprocess.Popen(
        test.command,
        cwd=test.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=test.limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return None, said
    return process.returncode, said


if __name__ == "__main__":
    typer.run(main)
