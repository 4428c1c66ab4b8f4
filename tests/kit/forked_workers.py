"""Spark's Python processes, forked off one that has imported what they import.

Spark starts a process for each stream, each kind of planning and each task that runs beside another. Each imports for a
second. A program in the place of Python asks a server to fork it instead, with the arguments, environment, folder and
descriptors that a fresh Python would have. Fresh ones are in `test_worker_daemon`, `test_worker_process` and the long
tests, which start a Spark of their own.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.forked_pulsarpy import import_before_forks, take_over

_IMPORTED_BEFORE = (
    "pandas",
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.datasource",
    "pulsar_on_spark.datasource.batch_reader",
    "pulsar_on_spark.datasource.stream_reader",
    "pulsar_on_spark.datasource.writer",
    "pulsar_on_spark.root",
    "pyspark_pulsarpy",
)
_REPOSITORY = Path(__file__).parents[2]
_REQUEST_BYTES = 1 << 17
"""Environments are a few KiB."""
# Ends with the process that it stands for, as Spark looks for the end of what it has started, and passes SIGTERM on.
_PYTHON = """\
#!{python} -IS
import json, os, select, signal, socket, sys
if sys.argv[1:2] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    module, *arguments = sys.argv[2:]
    request = {{"module": module, "arguments": arguments, "environment": dict(os.environ), "cwd": os.getcwd()}}
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    process = os.pidfd_open(int(server.recv(64)))
signal.signal(signal.SIGTERM, lambda *_: signal.pidfd_send_signal(process, signal.SIGTERM))
for descriptor in (0, 1, 2):
    os.close(descriptor)
ending = select.poll()
ending.register(process, select.POLLIN)
ending.poll()
"""


@contextmanager
def forked_workers(folder: Path) -> Iterator[Path]:
    """Run the server until the end; yields the program that Spark shall use as Python."""
    python, address = folder / "python", folder / "forks"
    python.write_text(_PYTHON.format(python=sys.executable, address=str(address)))
    python.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(address))
        listening.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.forked_workers", str(listening.fileno())],
            cwd=_REPOSITORY,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            pass_fds=[listening.fileno()],
        )
    try:
        yield python
    finally:
        server.kill()
        server.wait()


# --- the server ---


def _serve(listening: socket.socket) -> str:
    """Fork a process for each request; returns its module in each of those processes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # their ends are not waited for
    while True:
        client, _ = listening.accept()
        with client:
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return _become(client)


def _become(client: socket.socket) -> str:
    message, descriptors, _, _ = socket.recv_fds(client, _REQUEST_BYTES, 3)
    client.send(str(os.getpid()).encode())
    request = json.loads(message)
    take_over(request, dict(enumerate(descriptors)))
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return str(request["module"])


def _main() -> None:
    listening = socket.socket(fileno=int(sys.argv[1]))
    listening.set_inheritable(False)
    import_before_forks(_IMPORTED_BEFORE)
    runpy.run_module(_serve(listening), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
