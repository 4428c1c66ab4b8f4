"""A small standalone cluster of Spark: a master and workers as processes of this host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pyspark

from tests.kit.free_ports import free_port
from tests.kit.waiting import wait_until

_DEPLOY: Final = "org.apache.spark.deploy"


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker with one core.

    Attributes:
        host: The address that it has for Spark.
        folder: The folder for its executors.
        prefix: A command that runs it, such as one that makes a namespace.
        environment: More environment variables, which its executors get, too.
    """

    host: str
    folder: Path
    prefix: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def spark_cluster(logs: Path, workers: Sequence[Worker]) -> Iterator[str]:
    """Run a master and workers; yields the master's URL.

    Args:
        logs: A folder for their output.
        workers: The workers.
    """
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        said = logs / "master.log"
        options = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        _start(stack, said, [f"{_DEPLOY}.master.Master", *options])
        wait_until(partial(_says, said, "elected leader"), said.read_text)
        for worker in workers:
            options = ["--host", worker.host, "--webui-port", "0", "--cores", "1", "--memory", "700m"]
            options += ["--work-dir", str(worker.folder), url]
            log = logs / f"worker-{worker.host}.log"
            _start(stack, log, [f"{_DEPLOY}.worker.Worker", *options], worker.prefix, worker.environment)
            wait_until(partial(_says, log, "Successfully registered"), log.read_text)
        yield url


def _says(log: Path, words: str) -> bool:
    return words in log.read_text()


def _start(
    stack: ExitStack,
    log: Path,
    arguments: Sequence[str],
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    home = Path(pyspark.__file__).parent
    variables = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"}
    said = stack.enter_context(log.open("ab"))
    process = subprocess.Popen(
        [*prefix, str(home / "bin" / "spark-class"), *arguments],
        env={**os.environ, **variables, **(environment or {})},
        stdout=said,
        stderr=said,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
