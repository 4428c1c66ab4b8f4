"""The official Go and Java clients, unmodified, against one broker: their scenarios are in `go` and `java`.

They need Go or Maven, and the clients from their registries: the long runs have them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.root import Root
from tests.kit.client_programs import compile_java
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles

HERE = Path(__file__).parent
TIMEOUT_S = 900
"""With a compiler's run, and downloads the first time."""


@dataclass(frozen=True, slots=True)
class Served:
    """A broker, and how clients reach it.

    Attributes:
        broker: The broker.
        url: Its URL for Pulsar's clients.
        web_url: Its URL for HTTP.
        trust: PEM file of the CAs that clients trust; "" without TLS.
    """

    broker: RunningBroker
    url: str
    web_url: str
    trust: str


@pytest.fixture(scope="module", params=["plain", "TLS"])
def served(
    request: pytest.FixtureRequest, broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    if request.param == "plain":
        yield Served(broker, broker.url, broker.web_url, "")
        return
    files = TlsFiles(tmp_path_factory.mktemp("tls"))
    with RunningBroker(tmp_path_factory.mktemp("with-tls") / "root", files.settings()) as running:
        yield Served(running, running.tls_url, running.web_tls_url, files.trust)


def run(served: Served, prefix: str, folder: Path, command: Sequence[str | Path]) -> None:
    broker = served.broker
    Root.open(broker.root).create_topic(f"{prefix}-parts", partitions=3)
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"TLS_TRUST_CERTS": served.trust},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
    )
    passed = [line for line in done.stdout.splitlines() if line.startswith("passed ")]
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    assert done.returncode == 0, "\n".join(failed) or done.stdout[-5_000:]
    assert len(passed) > 15, "not all scenarios were run"


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_go(served: Served) -> None:
    run(served, "go", HERE / "go", ["go", "run", ".", served.url, "go"])
    topics = {record.name for record in Root.open(served.broker.root).store.view().all(TopicRecord)}
    assert "persistent://public/default/go-retry_by_default-stray-RETRY" in topics
    assert not [name for name in topics if name.startswith("persistent://public/default/stray-")]


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("mvn") is None, reason="needs Maven")
def test_java(served: Served, tmp_path: Path) -> None:
    project = compile_java(tmp_path / "java")
    assert project is not None
    arguments = f"{served.url} {served.web_url} java"
    main = ["-Dexec.mainClass=clients.Scenarios", f"-Dexec.args={arguments}"]
    run(served, "java", project, ["mvn", "-q", "exec:java", *main])
