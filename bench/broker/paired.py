"""The cost of a protection: two brokers run at the same time, and are measured in turn, pair by pair.

The medians of the pairs' ratios are not affected by slow changes of the machine during the run. The brokers take turns
in beginning a pair.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.broker.load import Load
from bench.broker.measures import MEASURES, Bench, Figures
from bench.broker.rest import rest
from bench.broker.targets import Protection, Target, our_broker
from bench.options import chosen
from pulsar_on_spark.model.quorum import Quorum

_MEASURES: Final = ("burst", "burst-zstd", "send")


def main(
    protection: Annotated[Protection, typer.Option(help="The protection of the second broker.")] = Protection.TLS,
    quorum: Annotated[str, typer.Option(help="The quorum of both brokers.")] = "3/3/2",
    pairs: Annotated[int, typer.Option(min=1, help="Number of pairs.")] = 5,
    seconds: Annotated[float, typer.Option(help="Duration of a burst, after 10 s of warm-up.")] = 10.0,
    only: Annotated[list[str] | None, typer.Option(help="Run only this measure (may be repeated).")] = None,
    work: Annotated[
        Path | None, typer.Option(help="Folder of the roots; in memory, the disk's changes do not count.")
    ] = None,
) -> None:
    """Measure pairs, and print a table of the ratios."""
    wanted = chosen(only, _MEASURES)
    with tempfile.TemporaryDirectory(prefix="bench-paired-", dir=work) as folder:
        roots = Path(folder)
        bench = Bench(Load(roots), seconds, 0, 0, 0, 0)
        with (
            our_broker(roots, Quorum.parse(quorum)) as plain,
            our_broker(roots, Quorum.parse(quorum), protection) as protected,
        ):
            found = [
                _pair(plain, protected, bench, number, wanted)
                for number in track(range(pairs), "pairs", console=Console(stderr=True))
            ]
    _show(found, protection)


def _pair(plain: Target, protected: Target, bench: Bench, number: int, measures: list[str]) -> tuple[Figures, Figures]:
    figures: dict[str, Figures] = {plain.name: {}, protected.name: {}}
    for name in measures:
        for target in (plain, protected) if number % 2 == 0 else (protected, plain):
            rest()
            figures[target.name] |= MEASURES[name](target, bench)
    return figures[plain.name], figures[protected.name]


def _show(pairs: list[tuple[Figures, Figures]], protection: Protection) -> None:
    table = Table("medians", "none", str(protection), "ratio", "lowest", "highest", title=f"{len(pairs)} pairs")
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for figure in pairs[0][0]:
        ratios = [protected[figure] / plain[figure] for plain, protected in pairs]
        row = (
            statistics.median(plain[figure] for plain, _ in pairs),
            statistics.median(protected[figure] for _, protected in pairs),
            statistics.median(ratios),
            min(ratios),
            max(ratios),
        )
        table.add_row(figure, *(f"{value:,.0f}" if value >= 100 else f"{value:,.3f}" for value in row))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
