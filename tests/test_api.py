"""The package's public names: complete, described, and light to import."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import pulsar_on_spark
from pulsar_on_spark.model import errors

HOUSE = Path(__file__).parent.parent


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import pulsar_on_spark", "[]"),
        ("from pulsar_on_spark import MessageId, Quorum, TopicName, __version__, errors", "[]"),
        ("from pulsar_on_spark import Root", "['pyarrow']"),
    ],
)
def test_names_load_no_more_than_they_need(code: str, loaded: str) -> None:
    heavy = "[m for m in ('deltalake', 'fastapi', 'pandas', 'pyarrow', 'pyspark') if m in sys.modules]"
    assert run(f"import sys; {code}; print({heavy})") == loaded


def test_every_public_name_is_exported() -> None:
    for name in pulsar_on_spark.__all__:
        assert getattr(pulsar_on_spark, name), name
        assert name in dir(pulsar_on_spark)
    assert pulsar_on_spark.errors is errors
    assert pulsar_on_spark.__version__ == version("pulsar-on-spark")
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = pulsar_on_spark.no_such_name


def test_type_checkers_see_every_public_name() -> None:
    tree = ast.parse(inspect.getsource(pulsar_on_spark))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    annotated = {node.target.id for node in checked.body if isinstance(node, ast.AnnAssign)}
    assert imported | annotated == set(pulsar_on_spark.__all__)
    assert (HOUSE / "pulsar_on_spark" / "py.typed").exists()


def test_the_page_of_the_api_names_every_public_name() -> None:
    page = (HOUSE / "docs" / "api.md").read_text()
    assert [name for name in pulsar_on_spark.__all__ if f"| `{name}` |" not in page] == []
