"""Imports between modules, beyond the contracts of import-linter."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_modules_import_each_other() -> None:
    """Imports for type checkers and inside functions count: a reader follows them, too."""
    graph = grimp.build_graph("pulsar_on_spark")
    TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()
