"""The official suites: their sources, the settings of their brokers, and their tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from conformance.outcomes import Judge, judge_go, judge_python
from conformance.security import Security, go_security, python_security

GO_MODULE: Final = "github.com/apache/pulsar-client-go@v0.19.0"
PYTHON_CLIENT: Final = "pulsar-client 3.13.0"
PYTHON_TESTS_VARIABLE: Final = "PYTHON_CLIENT_TESTS"
GO_TEST_LIMIT_S: Final = 180
PYTHON_TEST_LIMIT_S: Final = 180

_LIST_PYTHON_TESTS: Final = """
import unittest

def names(suite):
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from names(each)
        else:
            yield each.id()

print("\\n".join(names(unittest.defaultTestLoader.discover(".", "*_test.py"))))
"""


class SuiteMissingError(Exception):
    """A suite cannot be fetched; the text has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Test:
    """An official test: its name, and the command that runs it alone in `folder`."""

    name: str
    command: Sequence[str]
    folder: Path
    limit_s: float


@dataclass(frozen=True, slots=True)
class Suite:
    """An official suite.

    Attributes:
        name: Its name on the command line and in the record.
        source: Its name and version, for the page.
        find: Prepares the suite in a work folder and lists its tests; raises SuiteMissingError.
        judge: Reads the outcome of one of its tests.
        secure: Prepares TLS, authentication and authorization in a work folder.
        settings: Settings of the broker under test, by the names of `BrokerSettings`.
        pulsar_settings: The same for a real Pulsar.
        namespaces: Namespaces that its tests use, besides public/default.
    """

    name: str
    source: str
    find: Callable[[Path], list[Test]]
    judge: Judge
    secure: Callable[[Path], Security]
    settings: Mapping[str, object] = field(default_factory=dict)
    pulsar_settings: Mapping[str, object] = field(default_factory=dict)
    namespaces: Sequence[str] = ()


def _go_tests(package: str) -> Callable[[Path], list[Test]]:
    def find(work: Path) -> list[Test]:
        if shutil.which("go") is None:
            raise SuiteMissingError("Go is missing: install Go 1.24 or newer, which fetches and compiles the suite.")
        folder = _go_module(work)
        binary = work / f"{package.replace('/', '-')}-{GO_MODULE.partition('@')[2]}.test"
        if not binary.exists():
            _output(["go", "test", "-c", "-o", str(binary), f"./{package}"], folder)
        limit = f"-test.timeout={GO_TEST_LIMIT_S}s"
        return [
            Test(name, [str(binary), "-test.v", limit, f"-test.run=^{name}$"], folder / package, GO_TEST_LIMIT_S + 10)
            for name in _output([str(binary), "-test.list=^Test"], folder / package).split()
        ]

    return find


def _go_module(work: Path) -> Path:
    """Return the folder of the module, which Go downloads once."""
    return Path(json.loads(_output(["go", "mod", "download", "-json", GO_MODULE], work))["Dir"])


def _secure_go(work: Path) -> Security:
    return go_security(_go_module(work) / "integration-tests", work / "security")


def _secure_python(work: Path) -> Security:
    return python_security(_python_folder(), work / "security")


def _python_folder() -> Path:
    given = os.environ.get(PYTHON_TESTS_VARIABLE, "")
    folder = Path(given).resolve()
    if not given or not (folder / "pulsar_test.py").is_file():
        raise SuiteMissingError(
            f"The Python client's tests are missing: clone github.com/apache/pulsar-client-python at the tag of "
            f"{PYTHON_CLIENT} and set {PYTHON_TESTS_VARIABLE} to its folder tests."
        )
    return folder


def _python_tests(work: Path) -> list[Test]:
    folder = _python_folder()
    python = [sys.executable, "-B"]
    return [
        Test(name, [*python, "-m", "unittest", "-v", name], folder, PYTHON_TEST_LIMIT_S)
        for name in _output([*python, "-c", _LIST_PYTHON_TESTS], folder).split()
    ]


def _output(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SuiteMissingError(f"{' '.join(command[:4])} failed: {(done.stderr or done.stdout)[-500:].strip()}")
    return done.stdout


_GO_SETTINGS: Final = {"max_message_size": 1_048_576, "backlog_quota_check_interval_in_seconds": 5}
_GO_PULSAR_SETTINGS: Final = {
    "maxMessageSize": 1_048_576,
    "backlogQuotaCheckIntervalInSeconds": 5,
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    "transactionCoordinatorEnabled": "true",
}


def _go_suite(name: str, client: str, package: str) -> Suite:
    return Suite(
        name=name,
        source=f"{client}, {GO_MODULE}, package {package}",
        find=_go_tests(package),
        judge=judge_go,
        secure=_secure_go,
        settings=_GO_SETTINGS,
        pulsar_settings=_GO_PULSAR_SETTINGS,
        namespaces=("private/auth",),
    )


SUITES: Final = {
    suite.name: suite
    for suite in (
        _go_suite("go-client", "Go client", "pulsar"),
        _go_suite("go-admin", "Go admin client", "pulsaradmin/pkg/admin"),
        Suite(
            name="python-client",
            source=f"Python client, {PYTHON_CLIENT}, folder tests of apache/pulsar-client-python",
            find=_python_tests,
            judge=judge_python,
            secure=_secure_python,
            settings={"max_message_size": 1_024_000},
            pulsar_settings={"maxMessageSize": 1_024_000, "acknowledgmentAtBatchIndexLevelEnabled": "true"},
            namespaces=("public/default-2", "private/auth"),
        ),
    )
}
