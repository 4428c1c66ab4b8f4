"""docs/conformance.json: the outcome of every test of the last full run, for each suite and side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, Literal

from conformance.outcomes import Outcome

Side = Literal["ours", "pulsar"]
Outcomes = dict[str, Outcome]
"""Outcomes by test name, in the suite's order."""

SIDES: Final[tuple[Side, ...]] = ("ours", "pulsar")


class Record:
    """Outcomes by suite and side; a side that was never run has none."""

    def __init__(self, suites: Mapping[str, Mapping[str, Outcomes]] | None = None) -> None:
        self._suites = {name: dict(sides) for name, sides in (suites or {}).items()}

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read the record; a missing one is empty."""
        if not path.exists():
            return cls()
        suites = json.loads(path.read_text())
        return cls(
            {
                name: {side: {test: Outcome(**each) for test, each in tests.items()} for side, tests in sides.items()}
                for name, sides in suites.items()
            }
        )

    def save(self, path: Path) -> None:
        """Write the record, one line for each test."""
        lines = []
        for name, sides in self._suites.items():
            blocks = []
            for side, outcomes in sides.items():
                tests = ",\n".join(
                    f"   {json.dumps(test)}: {json.dumps(asdict(each))}" for test, each in outcomes.items()
                )
                blocks.append(f'  "{side}": {{\n{tests}\n  }}')
            lines.append(f' "{name}": {{\n' + ",\n".join(blocks) + "\n }")
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    def outcomes(self, suite: str, side: Side) -> Outcomes:
        """Return the outcomes of a suite's tests on one side."""
        return self._suites.get(suite, {}).get(side, {})

    def put(self, suite: str, side: Side, outcomes: Outcomes) -> None:
        """Replace the outcomes of a suite on one side."""
        self._suites.setdefault(suite, {})[side] = outcomes

    def fallen(self, suite: str, side: Side, outcomes: Outcomes) -> list[str]:
        """Return the tests that passed in the record and do not pass in `outcomes`."""
        return [
            test
            for test, before in self.outcomes(suite, side).items()
            if before.result == "passed" and (test not in outcomes or outcomes[test].result != "passed")
        ]
