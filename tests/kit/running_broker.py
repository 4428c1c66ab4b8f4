"""A broker in a process of its own, as `pulsarpy standalone` starts it, for tests with official clients."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

import httpx

from tests.kit.forked_pulsarpy import ForkedPulsarpy

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 90.0
"""A drain lasts a minute at most."""
_SERVING = re.compile(
    r"^Serving (?:the brokers of )?\S+ at (pulsar\S+?)(?: and (http[^\s,]+))?"
    r"(?:, with TLS at (pulsar\S+)?(?: and )?(http\S+)?)?$"
)

RUN_COMMAND: Final = """
import runpy, sys
del sys.argv[1:4]  # python -m pulsar_on_spark.cli
runpy.run_module("pulsar_on_spark.cli", run_name="__main__", alter_sys=True)
"""
"""A script for `prefix`, behind a Python: it runs the command line after the lines before it in its file."""


class RunningBroker:
    """`pulsarpy standalone`, `broker` or `proxy`, on free ports; `stop` is SIGTERM, `kill` is SIGKILL.

    Args:
        root: The root; made if it is not there.
        settings: Of `BrokerSettings`, given in the environment.
        command: Which of them; only `standalone` makes a root.
        prefix: A program that runs the broker, and its arguments; without one the broker and its processes are forked.
        options: Further options of the command.

    Attributes:
        url: What clients connect to.
        web_url: Where HTTP is served; empty if it is not.
        tls_url: What clients with TLS connect to, if there is a port without TLS, too.
        web_tls_url: Where HTTPS is served, if there is a port without TLS, too.

    Raises:
        RuntimeError: it did not start; the message holds what it said.
    """

    def __init__(
        self,
        root: Path | str,
        settings: Mapping[str, object] | None = None,
        *,
        command: str = "standalone",
        prefix: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        self.root = root
        given = {"broker_service_port": 0, "web_service_port": 0, **(settings or {})}
        environment = os.environ | {f"PULSARPY_{name.upper()}": str(value) for name, value in given.items()}
        self._said = bytearray()
        self._output, writing = os.pipe()
        os.set_blocking(self._output, False)
        self._hearing = threading.Lock()
        self._process: ForkedPulsarpy | subprocess.Popen[bytes]
        if prefix:
            arguments = [*prefix, sys.executable, "-m", "pulsar_on_spark.cli", command, str(root), *options]
            self._process = subprocess.Popen(arguments, env=environment, stdout=writing, stderr=writing)
        else:
            self._process = ForkedPulsarpy([command, str(root), *options], environment, writing, writing)
        os.close(writing)
        self._is_known = threading.Event()
        self.url = self.web_url = self.tls_url = self.web_tls_url = ""
        # A pipe that is never emptied would block the broker.
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        self._is_known.wait(START_TIMEOUT_S)
        if not self.url:
            self._process.kill()
            self.wait()
            raise RuntimeError(f"the broker did not start: {self.said}")

    def __enter__(self) -> RunningBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def said(self) -> str:
        """Return what the broker has printed and logged so far, as for an answer that it has just given."""
        self._hear()
        return self._said.decode(errors="replace")

    def metric(self, name: str) -> float:
        """Return the value of a metric that has one sample."""
        lines = httpx.get(f"{self.web_url}/metrics", timeout=30).text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name}{{")).rpartition(" ")[2])

    def stop(self) -> int:
        """End it as an operator does; returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it at once; processes of its own see that it is gone, and end beside whatever comes next."""
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)

    def wait(self) -> int:
        """Until it has ended; returns its exit code."""
        code = self._process.wait(STOP_TIMEOUT_S)
        self._listening.join(STOP_TIMEOUT_S)
        return code

    def _listen(self) -> None:
        output = select.poll()
        output.register(self._output, select.POLLIN)
        while self._hear():
            if not self._is_known.is_set():
                self._find_urls()
            output.poll()
        self._find_urls()
        self._is_known.set()
        with self._hearing:
            os.close(self._output)
            self._output = -1

    def _hear(self) -> bool:
        """Read what is in the pipe; return False once the broker and its children have closed it."""
        with self._hearing, suppress(BlockingIOError):
            while self._output >= 0 and (piece := os.read(self._output, 1 << 16)):
                self._said += piece
            return False
        return True

    def _find_urls(self) -> None:
        for line in self._said.decode(errors="replace").splitlines(keepends=True):
            if line.endswith("\n") and (match := _SERVING.match(line)) is not None:
                self.url, self.web_url, self.tls_url, self.web_tls_url = (found or "" for found in match.groups())
                self._is_known.set()
