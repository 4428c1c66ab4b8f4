"""SECURITY.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_the_tests_of_each_vulnerability_exist() -> None:
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", (PROJECT / "SECURITY.md").read_text())
    assert len(named) > 10
    for file, test in named:
        assert f"def {test}(" in (PROJECT / file).read_text()
