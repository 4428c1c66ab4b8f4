"""The results as a table on the terminal, as docs/benchmarks.md, and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.harness import Goal, Result, reached

HEAD = """# Benchmarks

How fast Spark reads and writes topics, beside Parquet, Delta and Kafka on the same machine. `make bench`
measures it and writes this page. The broker's figures beside Pulsar are on [its page](broker.md#measured),
those of roots on object stores on [theirs](cluster.md#measured).

Each figure is the median of {rounds} rounds in which all sides take turns, after two warm-up rounds, in one
Spark session: local[2], Unix-domain sockets on, the default checkpoint manager. "not run" names what was
missing on the machine.

![Median rates by side](benchmarks.png)
"""
_PEERS = ("Parquet", "Delta", "Kafka", "Python data source", "rate to noop")
"""Beginnings of the names of the peers' sides, whose bars are grey."""


def print_results(results: Sequence[Result], console: Console) -> None:
    """Print a table of all sides, and one of all ratios with their bounds."""
    sides = Table("benchmark", "side", "median", "lowest", "highest", "unit", "copies and fsync", title="Benchmarks")
    for row in _side_rows(results):
        sides.add_row(*row)
    console.print(sides)
    goals = Table("benchmark", "ratio", "value", "goal", title="Ratios")
    for row in _goal_rows(results):
        goals.add_row(*row)
    console.print(goals)


def write_markdown(
    results: Sequence[Result], environment: Mapping[str, object], payload: Mapping[str, object], rounds: int, path: Path
) -> None:
    """Write the page of the documentation with every figure, but without bounds, which are for developers."""
    lines = [HEAD.format(rounds=rounds)]
    for result in results:
        name = result.benchmark.name
        lines.append(f"## {name[0].upper()}{name[1:]}\n\n{result.benchmark.work}.\n")
        lines += _table(["side", "median", "lowest", "highest", "unit", "copies and fsync"], _side_rows([result]))
        lines += _table(["ratio", "value"], [row[:2] for row in _goal_rows([result])])
    lines.append("## Where this was measured\n")
    facts = {**{key: value for key, value in environment.items() if key != "packages"}, **payload}
    packages = environment["packages"]
    assert isinstance(packages, Mapping)
    lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in {**facts, **packages}.items()]
    loads = [load for result in results for load in result.load_average]
    lines.append(f"- load average while measuring: {min(loads)} to {max(loads)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def write_plot(results: Sequence[Result], path: Path) -> None:
    """Write one panel of bars for each benchmark, with every round as a dot."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [result for result in results if result.numbers]
    if not shown:
        return
    heights = [1.2 + 0.45 * len(result.numbers) for result in shown]
    figure, panels = plt.subplots(
        len(shown), 1, figsize=(9, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for (panel,), result in zip(panels, shown, strict=True):
        names = list(result.numbers)[::-1]
        medians = result.medians()
        colours = ["#a0aec0" if name.startswith(_PEERS) else "#2b6cb0" for name in names]
        panel.barh(names, [medians[name] for name in names], color=colours)
        for height, name in enumerate(names):
            numbers = result.numbers[name]
            panel.plot(numbers, [height] * len(numbers), "o", color="#1a202c", markersize=3)
        panel.set_title(f"{result.benchmark.name} ({result.benchmark.unit})", loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
        panel.locator_params(axis="x", nbins=5)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _side_rows(results: Sequence[Result]) -> list[list[str]]:
    single = len(results) == 1
    rows = []
    for result in results:
        medians = result.medians()
        for side in result.benchmark.sides:
            numbers = result.numbers.get(side.name)
            cells = (
                [f"{medians[side.name]:,.0f}", f"{min(numbers):,.0f}", f"{max(numbers):,.0f}"]
                if numbers
                else [f"not run: {result.not_run[side.name]}", "", ""]
            )
            row = [side.name, *cells, result.benchmark.unit, side.policy]
            rows.append(row if single else [result.benchmark.name, *row])
    return rows


def _goal_rows(results: Sequence[Result]) -> list[list[str]]:
    single = len(results) == 1
    rows = []
    for result in results:
        medians = result.medians()
        for goal in result.benchmark.goals:
            value = reached(goal, medians)
            row = [goal.text, "not run" if value is None else f"{value:,.2f}", _judged(goal, value)]
            rows.append(row if single else [result.benchmark.name, *row])
    return rows


def _judged(goal: Goal, value: float | None) -> str:
    if goal.at_least is None and goal.at_most is None:
        return "reported"
    bound = f"at least {goal.at_least}" if goal.at_least is not None else f"at most {goal.at_most}"
    if value is None:
        return bound
    kept = (goal.at_least is None or value >= goal.at_least) and (goal.at_most is None or value <= goal.at_most)
    return f"{bound}: {'reached' if kept else 'missed'}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]
