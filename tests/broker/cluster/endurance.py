"""Disturb brokers many times in each way, and keep the results: `make endurance` continues where it was ended.

The clients are official ones of Python, Go and Java, as far as these are installed. Each line of the file of results is
a run on a root of its own, with some disturbances. Runs of the present commit count or, with `--since`, runs of all
commits from that commit on. Violations are kept, too, with all that was said; the command ends with 1 if there is one.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from tests.broker.cluster.disturbed.runs import Disturbance, judge, on_disk, on_network, on_store, with_other_clocks
from tests.kit.client_programs import Command, build_all
from tests.kit.s3_server import S3Server, build_server

_AT_ONCE: Final = 5
"""Disturbances of one run."""
_KINDS: Final[tuple[tuple[str, Disturbance], ...]] = (
    ("disk", "kill"),
    ("disk", "kill_all"),
    ("disk", "pause"),
    ("disk", "restart"),
    ("disk", "move"),
    ("store", "kill"),
    ("store", "kill_all"),
    ("store", "pause"),
    ("store", "cut"),
    ("store", "outage"),
    ("network", "unplug"),
    ("network", "part"),
    ("clocks", "kill"),
    ("clocks", "pause"),
)
_ON_DISK: Final = {"disk": on_disk, "network": on_network, "clocks": with_other_clocks}


def main(
    times: Annotated[int, typer.Option(help="Number of disturbances of each kind.")] = 50,
    only: Annotated[str, typer.Option(help="One kind only, such as `store/cut`.")] = "",
    seconds: Annotated[float, typer.Option(help="Begin no run after this time.")] = float("inf"),
    results: Annotated[Path, typer.Option(help="The file of results.")] = Path("docs/endurance.jsonl"),
    since: Annotated[str, typer.Option(help="The first commit whose runs count.")] = "HEAD",
) -> None:
    """Run what is missing, the kind with the fewest disturbances first, and print a table."""
    build_server()
    with tempfile.TemporaryDirectory(prefix="endurance-programs-") as folder:
        broken = _run_missing(times, only, seconds, results, since, build_all(Path(folder)))
    raise typer.Exit(1 if broken else 0)


def _run_missing(
    times: int, only: str, seconds: float, results: Path, since: str, programs: Mapping[str, Command]
) -> int:
    """Run what is missing; returns the number of runs with a broken promise."""
    results.parent.mkdir(parents=True, exist_ok=True)
    commit = _git("rev-parse", "HEAD")
    counted = {_git("rev-parse", since), *_git("rev-list", f"{since}..HEAD").split()}
    kinds = [kind for kind in _KINDS if only in ("", "/".join(kind))]
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        done = Counter(dict.fromkeys(kinds, 0))
        for run in _of_commits(results, counted):
            done[run["place"], run["disturbance"]] += run["times"]
        place, disturbance = min(kinds, key=lambda kind: done[kind])
        if done[place, disturbance] >= times:
            break
        count = min(_AT_ONCE, times - done[place, disturbance])
        line = {"commit": commit, "place": place, "disturbance": disturbance, "times": count}
        deduplicated = done[place, disturbance] // _AT_ONCE % 2 == 0
        line |= _run(place, disturbance, count, deduplicated=deduplicated, programs=programs)
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{place}/{disturbance}: {line['outcome'][:300]}")
    return _show(list(_of_commits(results, counted)))


def _run(
    place: str, disturbance: Disturbance, times: int, *, deduplicated: bool, programs: Mapping[str, Command]
) -> dict[str, Any]:
    """Run once; returns how long that took, and what it said."""
    began_s, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="endurance-") as name, ExitStack() as at_end:
        folder = Path(name)
        if place in _ON_DISK:
            run = _ON_DISK[place](folder, disturbance, times, deduplicated=deduplicated)
        else:
            (folder / "s3").mkdir()
            server = at_end.enter_context(S3Server(folder / "s3"))
            run = on_store(server, folder, disturbance, times, deduplicated=deduplicated)
        try:
            held, outcome = True, judge(replace(run, programs=programs))
        except Exception as error:  # kept as a result, whatever it is
            held, outcome = False, "\n".join((str(error), *getattr(error, "__notes__", ())))
    took_s = round(time.monotonic() - began_s)
    return {
        "deduplicated": deduplicated,
        "clients": ["python", *programs],
        "took_s": took_s,
        "load": round(load, 1),
        "held": held,
        "outcome": outcome,
    }


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def _of_commits(results: Path, commits: Container[str]) -> Iterator[dict[str, Any]]:
    if results.exists():
        yield from (line for line in map(json.loads, results.read_text().splitlines()) if line["commit"] in commits)


def _show(runs: list[dict[str, Any]]) -> int:
    """Print a table; returns the number of runs with a broken promise."""
    table = Table("root on", "disturbance", "times", "runs", "commits", "broken", "minutes")
    for place, disturbance in _KINDS:
        of_kind = [run for run in runs if (run["place"], run["disturbance"]) == (place, disturbance)]
        if of_kind:
            broken = sum(not run["held"] for run in of_kind)
            minutes = sum(run["took_s"] for run in of_kind) / 60
            times = sum(run["times"] for run in of_kind)
            commits = len({run["commit"] for run in of_kind})
            table.add_row(place, disturbance, *map(str, (times, len(of_kind), commits, broken, f"{minutes:.0f}")))
    Console().print(table)
    return sum(not run["held"] for run in runs)


if __name__ == "__main__":
    typer.run(main)
