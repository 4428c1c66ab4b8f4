"""`pulsarpy`, and programs of tests, in processes that are forked off one that has imported everything already.

Python takes longer to import a broker than the broker to start. The server has one thread beside those of jemalloc,
which starts them again in a fork, so a fork runs as a fresh `python -m pulsar_on_spark.cli` does.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile

from tests.kit.spare_children import fork_spare_children
from tests.kit.waiting import LIMIT_S

_IMPORTED_BEFORE = ("pandas", "pulsar_on_spark.cli.app", "pulsar_on_spark.cli.serving", "pulsar_on_spark.proxy.proxy")
"""pyarrow imports pandas at the first array of a command that is not a broker."""
_CHILDREN = {"broker": 2, "standalone": 2}
"""Of commands: the fork server of the broker's children, and the resource tracker of `multiprocessing`."""
_REPOSITORY = Path(__file__).parents[2]
_REQUEST_BYTES = 1 << 17
"""Environments are a few KiB."""


class ForkedPulsarpy:
    """A process that runs `pulsarpy`, with the methods of `subprocess.Popen` that tests need.

    Args:
        arguments: Of `pulsarpy`.
        environment: All of it.
        output: The descriptor of its standard output.
        errors: That of its standard error.
        module: Another program, run as `python -m module` does.

    Attributes:
        pid: The process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output: int,
        errors: int,
        *,
        module: str = "pulsar_on_spark.cli",
    ) -> None:
        mask = os.umask(0)
        os.umask(mask)
        request = {
            "module": module,
            "arguments": arguments,
            "environment": dict(environment),
            "cwd": os.getcwd(),
            "umask": mask,
        }
        self._server = _server()
        self.pid = self._server.ask(request, [output, errors])
        self._ended = os.pidfd_open(self.pid)
        self._code: int | None = None

    def send_signal(self, number: int) -> None:
        """Do nothing if it has ended."""
        if self._code is None:
            signal.pidfd_send_signal(self._ended, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def has_ended(self) -> bool:
        """True once it has ended."""
        try:
            self.wait(0)
        except subprocess.TimeoutExpired:
            return False
        return True

    def wait(self, timeout: float) -> int:
        """Wait for its end; returns its exit code.

        Raises:
            subprocess.TimeoutExpired: it has not ended within the timeout.
        """
        if self._code is None:
            ending = select.poll()  # `select.select` takes no descriptor from 1024 on
            ending.register(self._ended, select.POLLIN)
            if not ending.poll(timeout * 1000):
                raise subprocess.TimeoutExpired("pulsarpy", timeout)
            self._code = self._server.ask({"ended": self.pid})
            os.close(self._ended)
        return self._code


def run_pulsarpy(*arguments: object, timeout_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run `pulsarpy` to its end, as `subprocess.run` does.

    Raises:
        subprocess.TimeoutExpired: it has not ended within the timeout.
    """
    words = list(map(str, arguments))
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        process = ForkedPulsarpy(words, os.environ, output.fileno(), errors.fileno())
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(["pulsarpy", *words], code, output.read(), errors.read())


class _Server:
    """The client of this process's server, for several threads."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.forked_pulsarpy", str(theirs.fileno())],
                cwd=_REPOSITORY,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._stop)

    def ask(self, request: Mapping[str, object], descriptors: Sequence[int] = ()) -> int:
        """Send a request; returns its answer, a number."""
        with self._asking:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            answer = self._socket.recv(_REQUEST_BYTES)
        assert answer, "the server of forked processes has ended"
        return int(answer)

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()


@cache
def _server() -> _Server:
    return _Server()


# --- the server ---


def _serve(client: socket.socket) -> str:
    """Fork a process for each request, until the client is gone; returns its module in each of those processes."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(client, _REQUEST_BYTES, 2)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if "ended" in request:
            _, status = os.waitpid(request["ended"], 0)
            client.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            client.close()
            _become(request, *descriptors)
            return str(request["module"])
        for descriptor in descriptors:
            os.close(descriptor)
        client.send(str(pid).encode())


def _become(request: dict[str, object], output: int, errors: int) -> None:
    assert isinstance(request["umask"], int)
    os.umask(request["umask"])
    assert isinstance(request["arguments"], list)
    take_over(request, {1: output, 2: errors})
    fork_spare_children(_CHILDREN.get(request["arguments"][0], 0))


def take_over(request: Mapping[str, object], descriptors: Mapping[int, int]) -> None:
    """Give this process the arguments, environment, folder and descriptors of the one to be started."""
    for number, descriptor in descriptors.items():
        os.dup2(descriptor, number)
        os.close(descriptor)
    assert isinstance(request["environment"], dict)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(str(request["cwd"]))
    assert isinstance(request["arguments"], list)
    sys.argv[1:] = request["arguments"]


def import_before_forks(names: Sequence[str]) -> None:
    """Import modules that all forks share.

    Raises:
        AssertionError: they have started threads, which a fork would not have.
    """
    for name in names:
        import_module(name)
    threads = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1, f"a fork takes one thread of {threads}"
    gc.freeze()  # a collection would copy memory that processes share


def _main() -> None:
    client = socket.socket(fileno=int(sys.argv[1]))
    client.set_inheritable(False)
    import_before_forks(_IMPORTED_BEFORE)
    runpy.run_module(_serve(client), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
