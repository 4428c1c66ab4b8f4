"""The chart `docs/images/ratios.svg`: measured ratios to Kafka, Pulsar, Parquet and Delta.

`python -m bench.ratios` reads the ratios from the output of `bench.run` (`docs/benchmarks.json`) and from the table of
`docs/broker.md`, so that the README's chart shows only figures of the documentation.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent.parent / "docs"
CHART = DOCS / "images" / "ratios.svg"


class Bar(NamedTuple):
    """A bar of the chart.

    Attributes:
        label: The work, and the peer.
        ratio: Speed relative to the peer's; below 1 the peer is faster.
    """

    label: str
    ratio: float


SPARK = (
    ("Spark batch read, beside Kafka's source", "batch read", "pulsarpy / Kafka source"),
    ("Spark stream read, beside Kafka's source", "availableNow stream", "pulsarpy / Kafka source"),
    ("Spark write, 8 partitions, beside Kafka's sink", "write", "8 keyless / Kafka sink"),
    ("Spark batch read, beside Parquet files", "batch read", "pulsarpy / Parquet"),
    ("Spark write, 8 partitions, beside a Delta append", "write", "8 keyless / Delta"),
)
BROKER = (
    ("broker: consume a backlog, beside Pulsar", "consume a fresh backlog", False),
    ("broker: one send at a time, median, beside Pulsar", "one send at a time, p50", True),
    ("broker: end to end at 10,000/s, median, beside Pulsar", "end to end at 10,000 msg/s, p50", True),
    ("broker: produce for 20 s, beside Pulsar", "produce, batched, one producer, 20 s", False),
    ("broker: produce for 60 s, beside Pulsar", "the same for 60 s", False),
    ("broker: CPU at 10,000/s, beside Pulsar", "the broker's CPU for these 30 s", True),
)


def bars() -> list[Bar]:
    """Return the chart's bars, from top to bottom.

    Raises:
        KeyError: the documentation lacks a figure.
    """
    document = json.loads((DOCS / "benchmarks.json").read_text())
    spark = {(each["name"], goal["ratio"]): goal["value"] for each in document["benchmarks"] for goal in each["goals"]}
    broker = broker_ratios((DOCS / "broker.md").read_text())
    return [
        *(Bar(label, spark[benchmark, ratio]) for label, benchmark, ratio in SPARK),
        *(Bar(label, 1 / broker[work] if is_time else broker[work]) for label, work, is_time in BROKER),
    ]


def broker_ratios(page: str) -> dict[str, float]:
    """Return the ratios by work from the page's first table beside Pulsar, from the rows with three copies."""
    _, table = re.split(r"^\| *\| copies \| Pulsar \|.*\n\|[-|]+\n", page, maxsplit=1, flags=re.MULTILINE)
    ratios = {}
    for line in table.splitlines():
        if not line.startswith("|"):
            break
        work, copies, _, _, ratio = (cell.strip() for cell in line.strip("|").split("|"))
        if work and copies.startswith("3"):
            ratios[work] = float(ratio)
    return ratios


def draw(shown: list[Bar], path: Path) -> None:
    """Draw horizontal bars around the line at 1.0, where project and peer are equally fast, into the file `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name, "font.family": "sans-serif"}):
        figure, axes = plt.subplots(figsize=(9, 0.6 + 0.36 * len(shown)), layout="constrained")
        labels, ratios = [bar.label for bar in shown][::-1], [bar.ratio for bar in shown][::-1]
        drawn = axes.barh(labels, ratios, color=["#2b6cb0" if ratio >= 1 else "#c05621" for ratio in ratios])
        axes.bar_label(drawn, [f"{ratio:.2f} x" for ratio in ratios], padding=-40, fontsize=9, color="white")
        axes.axvline(1, color="#1a202c", linewidth=1)
        axes.set_xlabel("times as fast as the other (1 = equally fast; orange: the other is faster)", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    draw(bars(), CHART)
