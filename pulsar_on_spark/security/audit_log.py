"""The audit of a broker, and its destinations: a file, the log, or none."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.audit import AuditRecord, Refusals, Verdict
from pulsar_on_spark.security.principal import Principal

log = logging.getLogger(__name__)
audit_log = logging.getLogger("pulsar_on_spark.audit")

SUMMARY_EVERY_S: Final = 60.0
"""Time between two summaries of refusals."""
_FILE_MODE: Final = 0o600


class Sink(Protocol):
    """The destination of the audit's lines, each a JSON object without a line break."""

    def write(self, line: str) -> None:
        """Add a line; must not raise."""

    def reopen(self) -> None:
        """Open the file again after a rotation has renamed it; do nothing without a file."""

    def close(self) -> None:
        """Close the sink; no line follows."""


class AuditFile:
    """An audit file, which only its owner can read.

    A line that cannot be written to the file is logged.

    Args:
        path: The file. It is created if it is missing; lines are appended.

    Raises:
        InvalidArgumentError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = self._open()
        except OSError as error:
            raise InvalidArgumentError(
                f"The audit log {path} cannot be written ({error.strerror}): set another audit_log_file."
            ) from error

    def _open(self) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        if stat.S_ISREG(os.fstat(file).st_mode):  # a device keeps its mode, because other programs use it, too
            os.fchmod(file, _FILE_MODE)
        return file

    def write(self, line: str) -> None:
        """Append a line to the file; log it if the file cannot be written."""
        data = f"{line}\n".encode()
        try:
            if os.write(self._file, data) != len(data):
                raise OSError("only a part was written")
        except OSError as error:
            log.error(
                "The audit log %s cannot be written (%s), so its line is logged here: %s", self._path, error, line
            )

    def reopen(self) -> None:
        """Open the path again; if that fails, continue with the former file."""
        try:
            opened = self._open()
        except OSError as error:
            log.error("The audit log %s cannot be opened again, so the former file stays in use: %s", self._path, error)
            return
        os.close(self._file)
        self._file = opened

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class AuditLogger:
    """Sink that writes each audit line to the logger `pulsar_on_spark.audit`."""

    def write(self, line: str) -> None:
        """Log a line, at the level INFO."""
        audit_log.info("%s", line)

    def reopen(self) -> None:
        """Do nothing: there is no file."""

    def close(self) -> None:
        """Do nothing: there is no file."""


class NoAudit(AuditLogger):
    """A sink that drops all lines."""

    def write(self, line: str) -> None:
        """Drop a line."""


class Audit:
    """The audit of a broker.

    Args:
        sink: The destination of the audit's lines.
        clock: Returns the current time, in seconds since 1970.
    """

    def __init__(self, sink: Sink, clock: Callable[[], float] = time.time) -> None:
        self._sink = sink
        self._clock = clock
        self._refusals = Refusals()

    def note_login(self, address: str, client: Principal) -> None:
        """Write that a client was authenticated, with its address `host:port`."""
        self._write(AuditRecord(address, "LOGIN", Verdict.ALLOWED).by(client))

    def note_logout(self, address: str, client: Principal) -> None:
        """Write that the connection of an authenticated client has ended, with its address `host:port`."""
        self._write(AuditRecord(address, "LOGOUT", Verdict.ALLOWED).by(client))

    def note_refusal(
        self,
        address: str,
        client: Principal | None,
        operation: str,
        resource: str = "",
        *,
        reason: str,
        status: int | None = None,
        method: str = "",
        credential: str = "",
    ) -> bool:
        """Write the refusal of an operation. Repetitions are counted, and their number is written once a minute.

        Returns:
            True for the first refusal of its kind since the last summary, which the caller should log.

        Args:
            address: The client's address, `host:port`.
            client: The client's identity; None if it is not authenticated.
            operation: The operation, such as LOGIN, PRODUCE or the method of a request.
            resource: The object of the operation, such as a topic or the path of a request.
            reason: The reason for the refusal.
            status: The HTTP status; None for Pulsar's protocol.
            method: The authentication method of a client that is not authenticated.
            credential: The mark of the refused token (`mark_of`); "" for the mark of the client's token.
        """
        record = AuditRecord(
            address,
            operation,
            Verdict.REFUSED,
            method=method,
            resource=resource,
            reason=reason,
            status=status,
            credential=credential,
        ).by(client)
        is_first = self._refusals.is_first(record)
        if is_first:
            self._write(record)
        return is_first

    def note_change(self, address: str, client: Principal, operation: str, resource: str, status: int) -> None:
        """Write a request that changes something, after it was answered.

        Args:
            address: The client's address, `host:port`.
            client: The client's identity.
            operation: The method of the request.
            resource: The path of the request.
            status: The HTTP status of the answer.
        """
        decision = Verdict.ALLOWED if status < 400 else Verdict.FAILED
        self._write(AuditRecord(address, operation, decision, resource=resource, status=status).by(client))

    async def summarize(self) -> None:
        """Write the counts of repeated refusals; called every `SUMMARY_EVERY_S`."""
        self._summarize()

    def reopen(self) -> None:
        """Open the file again, after a rotation has renamed it."""
        self._sink.reopen()

    def close(self) -> None:
        """Write the counts of repeated refusals, and close the sink."""
        self._summarize()
        self._sink.close()

    def _summarize(self) -> None:
        for record, times in self._refusals.summary():
            self._write(record, times)

    def _write(self, record: AuditRecord, times: int = 1) -> None:
        self._sink.write(record.line(self._clock(), times))
