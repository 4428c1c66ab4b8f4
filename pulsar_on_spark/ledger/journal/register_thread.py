"""The thread that serves a journal's register, so that no commit blocks the event loop."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pulsar_on_spark.ledger.journal.log import LogState
from pulsar_on_spark.ledger.journal.messages import (
    CommitLog,
    LogCommitted,
    LogCommitUnknown,
    LogConflict,
    LogRead,
)
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.model.errors import MetadataError, PulsarpyError
from pulsar_on_spark.storage.storage_path import PathFailure

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Looked:
    """Report: the record's state at some moment after the request; None if there is no record."""

    state: LogState | None


@dataclass(frozen=True, slots=True)
class NotLooked:
    """Report: `post_record` could not read the record's state for `wait_s` seconds."""


@dataclass(frozen=True, slots=True)
class RegisterSilent:
    """Report: `read` could not read the record for `wait_s` seconds."""

    reason: str


@dataclass(frozen=True, slots=True)
class RegisterLost:
    """Report: a request has failed by a defect of this program."""

    reason: str


RegisterReport: TypeAlias = (
    LogCommitted | LogConflict | LogCommitUnknown | LogRead | Looked | NotLooked | RegisterSilent | RegisterLost
)


class RegisterThread:
    """Thread that executes requests one after another; the methods queue requests and never block.

    Args:
        register: The log's register.
        mark_failed: Marks storage paths that were given up as failed in the root's metadata.
        post: Called with each report, in the thread.
        wait_s: Seconds for which a failing read is retried.
    """

    def __init__(
        self,
        register: LogRegister,
        mark_failed: Callable[[Sequence[PathFailure]], None],
        post: Callable[[RegisterReport], None],
        wait_s: float,
    ) -> None:
        self._register = register
        self._mark_failed = mark_failed
        self._post = post
        self._wait_s = wait_s
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_stopped = False
        self._unknown_commits = 0
        threading.Thread(target=self._run, name="journal-register", daemon=True).start()

    def commit(self, commit: CommitLog) -> None:
        """Request a commit; the thread posts LogCommitted, LogConflict or LogCommitUnknown."""
        self._work.put(lambda: self._do_commit(commit))

    def read(self) -> None:
        """Request the record; the thread posts LogRead or RegisterSilent, after a pause if commits were unknown."""
        self._work.put(self._do_read)

    def post_record(self) -> None:
        """Request the record's state; the thread posts Looked or NotLooked."""
        self._work.put(self._do_look)

    def mark(self, failures: Sequence[PathFailure]) -> None:
        """Mark paths as failed, with the reasons; a mark that fails is logged."""
        self._work.put(lambda: self._do_mark(failures))

    def stop(self) -> None:
        """End the thread after its queued requests; failed reads are not retried."""
        self._is_stopped = True
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:  # a defect: without an answer the core would wait for ever
                _LOGGER.exception(
                    "The register of %s is lost",
                    self._register.incarnation,
                    extra={"incarnation": self._register.incarnation},
                )
                self._post(RegisterLost(repr(error)))

    def _do_commit(self, commit: CommitLog) -> None:
        answer = self._register.commit(commit)
        self._unknown_commits = self._unknown_commits + 1 if isinstance(answer, LogCommitUnknown) else 0
        if isinstance(answer, LogCommitUnknown):
            _LOGGER.warning(
                "A commit of the record of %s may have failed: %s",
                self._register.incarnation,
                answer.reason,
                extra={"incarnation": self._register.incarnation},
            )
        self._post(answer)

    def _do_read(self) -> None:
        if self._unknown_commits > 0 and not self._is_stopped:
            time.sleep(_pause_s(self._unknown_commits - 1))
        self._post(self._read())

    def _do_look(self) -> None:
        report = self._read()
        if isinstance(report, LogRead):
            self._post(Looked(None if report.record is None else report.record.state))
        else:
            self._post(NotLooked())

    def _read(self) -> LogRead | RegisterSilent:
        end_s = time.monotonic() + self._wait_s
        failures = 0
        while True:
            try:
                return self._register.read()
            except MetadataError as error:
                _LOGGER.warning(
                    "The record of %s cannot be read: %s",
                    self._register.incarnation,
                    error,
                    extra={"incarnation": self._register.incarnation},
                )
                if self._is_stopped or time.monotonic() >= end_s:
                    return RegisterSilent(f"its record could not be read for {self._wait_s:g} s; last error: {error}")
            time.sleep(_pause_s(failures))
            failures += 1

    def _do_mark(self, failures: Sequence[PathFailure]) -> None:
        try:
            self._mark_failed(failures)
        except PulsarpyError as error:
            _LOGGER.warning("Storage paths could not be marked as failed: %s", error)


def _pause_s(failures: int) -> float:
    """Return the pause in seconds before a read.

    It grows with the number of failures up to a second, because the metadata store may be down.
    """
    return min(1.0, 0.05 * 2.0 ** min(failures, 5))
