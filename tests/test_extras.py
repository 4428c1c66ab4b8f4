"""Each package imports only what its extras declare, and no dependency is pinned."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import pulsar_on_spark

HOUSE = Path(__file__).parent.parent
PACKAGE = Path(pulsar_on_spark.__file__).parent


def third_party_imports(package: str) -> set[str]:
    """Top-level modules that the modules of a package import, at whatever depth of their code."""
    found = set()
    for path in (PACKAGE / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"pulsar_on_spark"}


def declared(*extras: str) -> set[str]:
    """Names of the distributions that the project requires, with these extras' own."""
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return {normal(re.split(r"[<>=\[ ]", requirement)[0]) for requirements in lists for requirement in requirements}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("package", "extras"),
    [
        ("model", ()),
        ("metadata", ()),
        ("ledger", ()),
        ("protocol", ("speed",)),
        ("topic", ()),
        ("datasource", ("delta",)),
        ("broker", ("broker", "cli")),
        ("cli", ("cli", "broker", "client")),
        ("jobs", ("cli", "demo")),
        ("security", ("security",)),
    ],
)
def test_each_package_imports_only_what_its_extras_declare(package: str, extras: tuple[str, ...]):
    homes = packages_distributions()
    known = declared(*extras)
    unknown = {name for name in third_party_imports(package) if known.isdisjoint(map(normal, homes[name]))}
    assert unknown == set()


def test_no_runtime_dependency_is_pinned_to_one_version():
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    assert [requirement for requirement in named if "==" in requirement] == []
