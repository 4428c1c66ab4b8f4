"""A real Apache Kafka as the peer: one broker, one copy, no fsync (its defaults), started by `peers/kafka/run`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

BOOTSTRAP = "127.0.0.1:19092"
START_SCRIPT = Path(__file__).parent / "peers" / "kafka" / "run"
START_TIMEOUT_S = 600.0
"""Time limit of a start in seconds; the first start resolves the JARs."""


class KafkaMissingError(Exception):
    """Error of a peer that cannot be started here; the text has the reason."""


class Kafka:
    """Context manager that runs a broker of Kafka, whose data is deleted at each start."""

    def __init__(self, work: Path) -> None:
        """Set the folder `work` for the JARs, the data and the log."""
        self._work = work.resolve()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def spark_jars(self) -> list[str]:
        """The JARs of Spark's Kafka source, for `spark.jars`."""
        return [str(jar) for jar in sorted((self._work / "spark-lib").glob("*.jar"))]

    def __enter__(self) -> Self:
        """Start the broker and wait until it listens.

        Raises:
            KafkaMissingError: Maven or Java is missing, or the broker does not start.
        """
        if shutil.which("mvn") is None and not (self._work / "lib").exists():
            raise KafkaMissingError("Maven is missing: install it")
        if shutil.which("java") is None:
            raise KafkaMissingError("Java is missing: install it")
        self._work.mkdir(parents=True, exist_ok=True)
        with (self._work / "log.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [str(START_SCRIPT), str(self._work)], stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the broker."""
        self._stop()

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic."""
        self._topics("--create", "--topic", name, "--partitions", str(partitions), "--replication-factor", "1")

    def delete_topic(self, name: str) -> None:
        """Delete a topic, whose disk space the broker frees a minute later."""
        self._topics("--delete", "--topic", name)

    def _topics(self, *arguments: str) -> None:
        command = ["java", "-cp", f"{self._work}/lib/*", "org.apache.kafka.tools.TopicCommand"]
        done = subprocess.run(
            [*command, "--bootstrap-server", BOOTSTRAP, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"Kafka refused {' '.join(arguments)}: {done.stdout[-500:]}{done.stderr[-500:]}")

    def _wait(self) -> None:
        assert self._process is not None
        host, port = BOOTSTRAP.split(":")
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise KafkaMissingError(
                    f"the start script ended with {self._process.returncode}, see {self._work}/log.txt"
                )
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    return
            time.sleep(0.5)
        raise KafkaMissingError(f"the broker did not listen within {START_TIMEOUT_S:.0f} s, see {self._work}/log.txt")

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(30)
