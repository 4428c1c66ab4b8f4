"""Runs of `pulsarpy` as processes that can be killed: forked off a process that has imported everything already.

Python takes seconds to import the program on a slow machine, and its commands a fraction of one: a kill at a random
moment would nearly always hit the imports. The server has one thread beside those of jemalloc, which it starts again in
a fork, so that one is as good as a new process.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import NoReturn

KILLED = -signal.SIGKILL
_AUDITED = {"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate"}
_IMPORTED_LATE = (
    "pandas",
    "pulsar_on_spark.topic.managed_ledger.incarnation.recover_dead",
    "pulsar_on_spark.topic.maintenance.status",
)
"""Modules that commands import only when they run; pyarrow asks for pandas at the first commit."""
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Kill:
    """The moment to kill a command: after some seconds, or as it opens, makes, renames or deletes its n-th file."""

    after_s: float | None = None
    at_file: int | None = None


NEVER = Kill()


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of a command: exit code (`KILLED` if it was), seconds, number of files, and output.

    Those are counted that Python asks the operating system for; delta-rs makes its commits between two of them.
    """

    code: int
    lasted_s: float
    files: int
    said: str


class ForkedCommands:
    """The server's client. Not for several threads."""

    def __init__(self, scratch: Path) -> None:
        self._said = scratch / "said"
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.ops.forked_commands"],
            cwd=_REPOSITORY,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> ForkedCommands:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.communicate()

    def run(self, arguments: list[str], kill: Kill = NEVER) -> Run:
        """Run `pulsarpy` with these arguments to its end, or until it is killed."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = {"arguments": arguments, "said": str(self._said), "kill": asdict(kill)}
        print(json.dumps(request), file=self._server.stdin, flush=True)
        code, lasted_s, files = json.loads(self._server.stdout.readline())
        return Run(code, lasted_s, files, self._said.read_text())


# --- the server ---


def _serve() -> None:
    from pulsar_on_spark.cli.app import main

    for name in _IMPORTED_LATE:
        import_module(name)

    threads = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1, f"a fork takes one thread of {threads}"
    with mmap.mmap(-1, mmap.PAGESIZE) as shared:
        for line in sys.stdin:
            request = json.loads(line)
            kill = Kill(**request["kill"])
            began_s = time.monotonic()
            pid = os.fork()
            if pid == 0:
                _run(main, request["arguments"], request["said"], _Files(shared, kill.at_file))
            with open(os.pidfd_open(pid), "rb") as child:
                ended, _, _ = select.select([child], [], [], kill.after_s)
                if not ended:
                    signal.pidfd_send_signal(child.fileno(), signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            lasted_s = time.monotonic() - began_s
            print(json.dumps([os.waitstatus_to_exitcode(status), lasted_s, _Files.of(shared)]), flush=True)


class _Files:
    """An audit hook that counts in memory shared with the server, and kills its process at one of its files."""

    def __init__(self, shared: mmap.mmap, kill_at: int | None) -> None:
        self._shared = shared
        self._kill_at = kill_at
        self._count = 0
        shared[:8] = bytes(8)

    @staticmethod
    def of(shared: mmap.mmap) -> int:
        """Return how many files the last command has opened, made, renamed or deleted."""
        return int.from_bytes(shared[:8], "little")

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        """See `sys.addaudithook`."""
        if event not in _AUDITED:
            return
        self._count += 1
        if self._count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self._shared[:8] = self._count.to_bytes(8, "little")


def _run(main: Callable[[], None], arguments: list[str], said: str, files: _Files) -> NoReturn:
    """Be a command; never returns into the server's loop."""
    code = 70
    try:
        with open(said, "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.addaudithook(files)
        sys.argv = ["pulsarpy", *arguments]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
