"""The official Go and Java clients, unmodified, against one broker: their scenarios are in `go` and `java`.

They need Go or Maven, and the clients from their registries: the long runs have them.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.root import Root
from tests.kit.running_broker import RunningBroker

HERE = Path(__file__).parent
TIMEOUT_S = 900
"""With a compiler's run, and downloads the first time."""


def run(broker: RunningBroker, prefix: str, folder: Path, command: Sequence[str | Path]) -> None:
    Root.open(broker.root).create_topic(f"{prefix}-parts", partitions=3)
    done = subprocess.run(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S
    )
    passed = [line for line in done.stdout.splitlines() if line.startswith("passed ")]
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    assert done.returncode == 0, "\n".join(failed) or done.stdout[-5_000:]
    assert len(passed) > 15, "not all scenarios were run"


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_go(broker: RunningBroker) -> None:
    run(broker, "go", HERE / "go", ["go", "run", ".", broker.url, "go"])
    topics = {record.name for record in Root.open(broker.root).store.view().all(TopicRecord)}
    assert "persistent://public/default/go-retry_by_default-stray-RETRY" in topics
    assert not [name for name in topics if name.startswith("persistent://public/default/stray-")]


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("mvn") is None, reason="needs Maven")
def test_java(broker: RunningBroker, tmp_path: Path) -> None:
    project = shutil.copytree(HERE / "java", tmp_path / "java", ignore=shutil.ignore_patterns("target"))
    subprocess.run(["mvn", "-q", "compile"], cwd=project, check=True, timeout=TIMEOUT_S)
    arguments = f"{broker.url} {broker.web_url} java"
    main = ["-Dexec.mainClass=clients.Scenarios", f"-Dexec.args={arguments}"]
    run(broker, "java", project, ["mvn", "-q", "exec:java", *main])
