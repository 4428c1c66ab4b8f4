"""The import contract that keeps clocks, chance and IO out of the dispatchers detects a violation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]


@pytest.mark.parametrize("module", ["time", "asyncio", "random"])
def test_an_import_into_a_dispatcher_is_refused(module: str, tmp_path: Path) -> None:
    broker = Path("pulsar_on_spark/broker")
    shutil.copytree(PROJECT / broker, tmp_path / broker, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pulsar_on_spark" / "__init__.py").touch()
    contracts = (PROJECT / "pyproject.toml").read_text().split("[[tool.importlinter.contracts]]")
    pure = next(contract for contract in contracts if "The broker's cores decide only" in contract)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.importlinter]\nroot_packages = ['pulsar_on_spark']\ninclude_external_packages = true\n"
        f"[[tool.importlinter.contracts]]{pure}"
    )
    assert _lint(tmp_path).returncode == 0, _lint(tmp_path).stdout
    pool = tmp_path / broker / "dispatch" / "pool.py"
    pool.write_text(pool.read_text() + f"\nimport {module}\n")
    result = _lint(tmp_path)
    assert result.returncode != 0
    assert "pulsar_on_spark.broker.dispatch.pool" in result.stdout


def _lint(project: Path) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [command, "--no-logo", "--no-cache"], cwd=project, env={"PYTHONPATH": "."}, capture_output=True, text=True
    )
