"""Programs with producers and consumers of the official Go and Java clients, which say what they see (`go/history`)."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.kit.go import find_go
from tests.kit.waiting import wait_until

CLIENTS: Final = Path(__file__).parents[1] / "broker/clients"
_BUILD_S: Final = 900
_JAVA: Final = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
"""Short programs on few cores are compiled fast rather than well."""

Command = tuple[str, ...]


def build_all(folder: Path) -> dict[str, Command]:
    """Build the programs in a folder, and return their commands by the clients' language; without those whose compiler
    is missing.
    """
    commands: dict[str, Command] = {}
    if (program := build_go("./history", folder / "history")) is not None:
        commands["go"] = (str(program),)
    libraries = ("dependency:copy-dependencies", "-DoutputDirectory=target/lib")
    if (project := compile_java(folder / "java", *libraries)) is not None:
        classes = f"{project}/target/classes:{project}/target/lib/*"
        commands["java"] = (*_JAVA, "-cp", classes, "clients.History")
    return commands


def build_go(package: str, program: Path) -> Path | None:
    """Build a package of the Go clients' module, and return the program; None without Go."""
    go = find_go()
    if go is None:
        return None
    subprocess.run([go, "build", "-o", program, package], cwd=CLIENTS / "go", check=True, timeout=_BUILD_S)
    return program


def compile_java(project: Path, *goals: str) -> Path | None:
    """Compile a copy of the Java clients' project, with further goals of Maven, and return it; None without Maven."""
    if shutil.which("mvn") is None:
        return None
    shutil.copytree(CLIENTS / "java", project, ignore=shutil.ignore_patterns("target"))
    subprocess.run(["mvn", "-q", "compile", *goals], cwd=project, check=True, timeout=_BUILD_S)
    return project


class ClientProgram:
    """A running program.

    Attributes:
        granted: Number of messages that each of its producers was allowed to send.
    """

    def __init__(
        self, command: Sequence[str], url: str, topic: str, log: Path, note: Callable[[str, str], None]
    ) -> None:
        """Start the program, and wait until its clients are there.

        Args:
            command: The command without arguments.
            url: The URL of the brokers.
            topic: The name of the topic.
            log: A file to which the logs of the clients are added.
            note: Gets the first word and the rest of each line about a message, in a thread.
        """
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*command, url, topic], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, bufsize=1
            )
        self._name = Path(command[0]).name
        self._note = note
        self._said = set[str]()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        self.granted = 0
        self._expect("ready")

    def __enter__(self) -> ClientProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._reading.join()
        self._process.wait()

    def grant(self, messages: int) -> None:
        """Allow each producer to send more messages."""
        self.granted += messages
        self._tell(str(messages))

    def end_sending(self) -> None:
        """End the producers, and wait for their receipts."""
        self._tell("end")
        self._expect("ended")

    def close(self) -> None:
        """End the consumers, and return when all lines are noted."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reading.join()
        assert self._process.wait() == 0

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")

    def _expect(self, line: str) -> None:
        wait_until(lambda: line in self._said, f"{self._name} says {line!r}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            if rest:
                self._note(word, rest)
            else:
                self._said.add(word)
