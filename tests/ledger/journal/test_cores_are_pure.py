"""The rule that keeps clocks, chance and IO out of the cores fails where one comes in."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
JOURNAL = Path("pulsar_on_spark/ledger/journal")


def lint_imports(project: Path) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [command, "--no-logo", "--no-cache"], cwd=project, env={"PYTHONPATH": "."}, capture_output=True, text=True
    )


@pytest.mark.parametrize("line", ["import time", "from os import path as os_path", "import threading"])
def test_an_import_into_a_core_is_refused(line: str, tmp_path: Path) -> None:
    for directory in ("pulsar_on_spark/model", str(JOURNAL)):
        shutil.copytree(PROJECT / directory, tmp_path / directory, ignore=shutil.ignore_patterns("__pycache__"))
    for package in ("", "ledger"):
        (tmp_path / "pulsar_on_spark" / package / "__init__.py").touch()
    contracts = (PROJECT / "pyproject.toml").read_text().split("[[tool.importlinter.contracts]]")
    cores = next(contract for contract in contracts if "journal's cores" in contract)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.importlinter]\nroot_packages = ['pulsar_on_spark']\ninclude_external_packages = true\n"
        f"[[tool.importlinter.contracts]]{cores}"
    )
    assert lint_imports(tmp_path).returncode == 0, lint_imports(tmp_path).stdout

    writer = tmp_path / JOURNAL / "writer.py"
    writer.write_text(writer.read_text() + f"\n{line}\n")

    result = lint_imports(tmp_path)
    assert result.returncode != 0
    assert "pulsar_on_spark.ledger.journal.writer" in result.stdout
