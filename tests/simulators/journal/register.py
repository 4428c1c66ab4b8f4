"""The simulated metadata: the incarnation's record under its `log` key, seals and trims under its `seal` key.

What is committed is durable. An answer may be late, or say "unknown" of a commit that succeeded, or that comes later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pulsar_on_spark.ledger.journal.log import Fragment, FrameNumber, LogRecord
from pulsar_on_spark.ledger.journal.messages import CommitLog, LogCommitted, LogConflict
from pulsar_on_spark.ledger.journal.sealing import EntryRange, SealMarks
from pulsar_on_spark.model.ids import EntryId, LedgerId


@dataclass(frozen=True, slots=True)
class MainView:
    """Main at one version, as far as it is about the log.

    Attributes:
        log: The record; one that is gone is known still.
        log_version: Of the `log` key.
        seal_version: Of the `seal` key.
        sealed_before: See `SealMarks`, as `trimmed_before`.
        trimmed_before: See there.
        sealed: Behind the last sealed entry of each ledger.
        opened: The ledgers that were opened in the log.
        ends: How many entries ledgers have, by their close rows.
        is_gone: The record was deleted.
    """

    log: LogRecord | None = None
    log_version: int = 0
    seal_version: int = 0
    sealed_before: FrameNumber = 0
    trimmed_before: FrameNumber = 0
    sealed: Mapping[LedgerId, EntryId] = field(default_factory=dict)
    opened: tuple[LedgerId, ...] = ()
    ends: Mapping[LedgerId, EntryId] = field(default_factory=dict)
    is_gone: bool = False

    @property
    def record(self) -> LogRecord:
        """The record, where there is one."""
        assert self.log is not None, "there is a log"
        return self.log

    @property
    def unended(self) -> list[LedgerId]:
        """Ledgers without close row."""
        return [ledger for ledger in self.opened if ledger not in self.ends]

    @property
    def marks(self) -> SealMarks:
        """Return the facts that the rules of sealing need."""
        return SealMarks(self.sealed_before, self.trimmed_before, not self.unended)


@dataclass(frozen=True, slots=True)
class SealCommit:
    """A commit under the `seal` key at the version of the view that it was decided on, with what it adds.

    `fragments`: those that the record still names, in a commit that moves the `log` key too; none: it goes.
    """

    decided_on: MainView
    sealed: tuple[EntryRange, ...] = ()
    sealed_before: FrameNumber | None = None
    ends: Mapping[LedgerId, EntryId] | None = None
    trimmed_before: FrameNumber | None = None
    opens: LedgerId | None = None
    fragments: tuple[Fragment, ...] | None = None


@dataclass(slots=True)
class Register:
    """Two keys of the main table, and the cursors table."""

    main: MainView
    snapshots: dict[str, int] = field(default_factory=dict)

    @property
    def log(self) -> LogRecord | None:
        """The incarnation's record."""
        return self.main.log

    @property
    def log_version(self) -> int:
        """The `log` key's version."""
        return self.main.log_version

    def commit_log(self, commit: CommitLog) -> LogCommitted | LogConflict | None:
        """Compare-and-set the record; None: there is none and one was expected, which no actor does."""
        main = self.main
        if commit.expected_version != main.log_version:
            return LogConflict(main.log, main.log_version) if main.log is not None else None
        seal_version = main.seal_version + commit.moves_seal
        self.main = replace(main, log=commit.record, log_version=main.log_version + 1, seal_version=seal_version)
        return LogCommitted(self.main.log_version)

    def commit_seal(self, commit: SealCommit) -> bool:
        """Compare-and-set what is under the `seal` key."""
        main, then = self.main, commit.decided_on
        moves_log = commit.fragments is not None
        if then.seal_version != main.seal_version or (moves_log and then.log_version != main.log_version):
            return False
        self.main = replace(
            main,
            seal_version=main.seal_version + 1,
            sealed={**main.sealed, **{entries.ledger: entries.end for entries in commit.sealed}},
            sealed_before=main.sealed_before if commit.sealed_before is None else commit.sealed_before,
            ends={**main.ends, **(commit.ends or {})},
            trimmed_before=main.trimmed_before if commit.trimmed_before is None else commit.trimmed_before,
            opened=main.opened if commit.opens is None else (*main.opened, commit.opens),
        )
        if commit.fragments is not None:
            kept = replace(main.record, fragments=commit.fragments)
            is_gone = not commit.fragments
            self.main = replace(self.main, log=kept, log_version=main.log_version + 1, is_gone=is_gone)
        return True


def new_register(ledgers: tuple[LedgerId, ...]) -> Register:
    """Return a register in which only the opening of these ledgers was committed."""
    return Register(MainView(opened=ledgers))
