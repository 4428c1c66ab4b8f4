"""The outcome of one official test, read from its exit code and its output."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

Result = Literal["passed", "failed", "skipped"]

WHY_CHARACTERS: Final = 160
"""Maximum length of a stored reason."""

_NEEDS_PREFIX: Final = "needs "
_NEEDS: Final = (
    (re.compile(r"Could not resolve host"), "the internet"),
    (re.compile(r"docker is required|Docker daemon|docker not found|Docker not found|docker\.sock"), "Docker"),
)
"""Missing parts of the environment, recognised in a failed test's output."""
_RUN_OF_DIGITS: Final = re.compile(r"\d{6,}")
"""Times, and names made from them, which differ in each run and would change the page needlessly."""
_GO_ASSERTION: Final = re.compile(r"^\s+Error:\s+(.*?)(?=\n\s+(?:Test|Messages):|\n\S)", re.DOTALL | re.MULTILINE)
_GO_PANIC: Final = re.compile(r"^panic: .*", re.MULTILINE)
_GO_FATAL: Final = re.compile(r"^\s+(\w+_test\.go:\d+:.*)", re.MULTILINE)
_GO_SKIPPED: Final = re.compile(r"^--- SKIP: ", re.MULTILINE)
_PYTHON_ERROR: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)", re.MULTILINE)
_PYTHON_OK: Final = re.compile(r"^Ran 1 test in .*\n\nOK$", re.MULTILINE)
"""The end of a run of a single test that passed, which comes before Python ends."""
_PYTHON_SKIPPED: Final = re.compile(r"\bskipped ['\"](.*)['\"]$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a test; `why` is one line, empty for a test that passed at the first attempt."""

    result: Result
    why: str = ""

    @property
    def may_be_repeated(self) -> bool:
        """True if the test failed, but not because of a missing environment: many of these tests depend on timing."""
        return self.result == "failed" and not self.why.startswith(_NEEDS_PREFIX)

    def after(self, first: Outcome) -> Outcome:
        """Combine both attempts' outcomes, this one being the second: a passed test names its first failure."""
        if self.result != "passed":
            return self
        return Outcome("passed", _cut(f"at the second attempt; at the first: {first.why}"))


Judge = Callable[[int | None, str], Outcome]
"""Reads an outcome from a process's exit code (None: stopped at its time limit) and its output."""


def judge_go(code: int | None, output: str) -> Outcome:
    """Judge a Go test binary that ran a single test with `-test.v`."""
    if code == 0:
        if _GO_SKIPPED.search(output):
            return Outcome("skipped", _why(_last(_GO_FATAL, output), output))
        return Outcome("passed")
    said = _first(_GO_ASSERTION, output) or _first(_GO_PANIC, output) or _last(_GO_FATAL, output)
    return Outcome("failed", _why(said, output, code))


def judge_python(code: int | None, output: str) -> Outcome:
    """Judge `python -m unittest` of a single test."""
    if code == 0:
        said = _last(_PYTHON_SKIPPED, output)
        return Outcome("skipped", _why(said, output)) if said else Outcome("passed")
    if code is not None and code < 0 and _PYTHON_OK.search(output):
        # The client's library ends some processes so after their last test (pulsar-client 3.13.0, also with Pulsar).
        return Outcome("passed", f"the client's process was ended by signal {-code} after the test")
    return Outcome("failed", _why(_last(_PYTHON_ERROR, output), output, code))


def _why(said: str, output: str, code: int | None = 0) -> str:
    for pattern, what in _NEEDS:
        if pattern.search(output):
            return _NEEDS_PREFIX + what
    line = _RUN_OF_DIGITS.sub("…", " ".join(said.split()))
    if not line:
        line = "no end within the time limit" if code is None else f"exit code {code}"
    return _cut(line)


def _cut(line: str) -> str:
    return line if len(line) <= WHY_CHARACTERS else line[: WHY_CHARACTERS - 1] + "…"


def _first(pattern: re.Pattern[str], output: str) -> str:
    found = pattern.search(output)
    return "" if found is None else found[found.re.groups]


def _last(pattern: re.Pattern[str], output: str) -> str:
    found = None
    for found in pattern.finditer(output):  # noqa: B007
        pass
    return "" if found is None else found[found.re.groups]
