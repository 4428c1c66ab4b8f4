"""The official Java admin client, unmodified; its scenarios are in `java_admin`. Needs Maven, and its registry."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from tests.kit.running_broker import RunningBroker

HERE = Path(__file__).parent
TIMEOUT_S = 900
"""With a compiler's run, and downloads the first time."""


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("mvn") is None, reason="needs Maven")
def test_java_admin(tmp_path: Path) -> None:
    storage_paths.add(Root.create(tmp_path / "root"), tmp_path / "cold", "archive", role="cold")
    project = shutil.copytree(HERE / "java_admin", tmp_path / "java", ignore=shutil.ignore_patterns("target"))
    subprocess.run(["mvn", "-q", "compile"], cwd=project, check=True, timeout=TIMEOUT_S)
    with RunningBroker(tmp_path / "root") as broker:
        main = ["-Dexec.mainClass=admin.Scenarios", f"-Dexec.args={broker.url} {broker.web_url}"]
        done = subprocess.run(
            ["mvn", "-q", "exec:java", *main],
            cwd=project,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
        )
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    assert done.returncode == 0, "\n".join(failed) or done.stdout[-5_000:]
    assert sum(line.startswith("passed ") for line in done.stdout.splitlines()) == 11
