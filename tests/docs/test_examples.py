"""Every Python block of the README and of docs/ runs, page by page, in one session; options.md leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pulsar_on_spark.datasource.columns import METADATA_COLUMNS
from pulsar_on_spark.datasource.option_names import ALIASES, READ_OPTIONS, REFUSED, WRITE_OPTIONS

HOUSE = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCS = (HOUSE / "README.md", *sorted((HOUSE / "docs").glob("*.md")))
LONG = ("spark-recipes.md", "streaming.md")
"""Pages with many streams, or with joins of Delta tables."""
PAGES = [
    pytest.param(page, id=page.name, marks=[pytest.mark.long] * (page.name in LONG))
    for page in DOCS
    if BLOCK.search(page.read_text())
]


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(delta_spark: SparkSession, page: Path, tmp_path: Path) -> None:
    """Paths called `my-...` are put into a folder of this test."""
    spark = delta_spark
    names: dict[str, object] = {"__name__": page.name}
    text = page.read_text()
    try:
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            code = re.sub(r'"(my-[\w.-]+)"', lambda found: repr(str(tmp_path / found[1])), block[1])
            exec(compile("\n" * line + code, str(page), "exec"), names)
        for query in spark.streams.active:
            query.processAllAvailable()
    finally:
        for query in spark.streams.active:
            query.stop()


def test_options_md_names_every_option_and_column() -> None:
    text = (HOUSE / "docs" / "options.md").read_text()
    names = {*READ_OPTIONS, *WRITE_OPTIONS, *ALIASES, *REFUSED, "value", *METADATA_COLUMNS}
    assert sorted(name for name in names if f"`{name}`" not in text) == []
