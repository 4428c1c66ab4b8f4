"""The simulation's knowledge that no actor has; it checks invariants I1 to I12 at each step that could break one.

I1   no acknowledged frame is above the end of a CLOSED log      I7   a no comes from a fenced file only
I2   acknowledged frames are in files that the record names      I8   a lost frame is never denied
I3   frames of a CLOSED log are durable at ack quorum            I9   only its recoverer changes a taken log
I4   acknowledged in order, without gap, with the bytes sent     I10  an answer is durable before it is given
I5   CLOSED is final, ended fragments do not change              I11  nothing is deleted or forgotten that is needed
I6   no acknowledgement under copies that no record names        I12  a reader never goes back, skips or invents

On object stores these rules also mean that a fence stays for ever (I1, I10), that the prefix of a file never shrinks
before it is trimmed (I8, I11), and that no object of an active file is deleted (I11), whatever collection and writers
that wake up late do.

I7, I8 and I10 look at single answers of single files. What they prevent the others notice too, when it happens: runs
of a profile without `checks_answers` prove that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pulsar_on_spark.ledger.journal.copy_protocol import End, ReadAnswer
from pulsar_on_spark.ledger.journal.log import NO_FRAME, Copy, Fragment, LogRecord, LogState, ended_before, fault_in
from pulsar_on_spark.model.ids import EntryId, LedgerId
from tests.simulators.journal.disk import FENCED_NAME, OPEN_NAME, JournalFile, SimFrame
from tests.simulators.journal.register import MainView, Register, SealCommit


@dataclass(frozen=True, slots=True)
class Place:
    """The source of entries [first, end) that a reader got: segments, or `frame`, which these copies hold."""

    ledger: LedgerId
    first: int
    end: int
    frame: int | None
    copies: tuple[Copy, ...]


class ViolationError(AssertionError):
    """An invariant that does not hold; the message begins with its number."""


class Oracle:
    """The truth of one run."""

    def __init__(self, register: Register, *, checks_answers: bool) -> None:
        self.register = register
        self._checks_answers = checks_answers
        self._taker = ""
        self.files: dict[Copy, JournalFile] = {}
        self.sent: list[SimFrame] = []
        self.acked = NO_FRAME
        self.entries: dict[LedgerId, list[int]] = {}
        """Ledger -> frame number of each of its entries, as sent."""

    # -- frames --------------------------------------------------------------------------------------------------------

    def on_sent(self, frame: SimFrame) -> None:
        """The writer numbered a frame."""
        if frame.facts.number != len(self.sent):
            raise ViolationError(f"I4: frame {frame.facts.number} follows {len(self.sent) - 1}")
        self.sent.append(frame)
        for entries in frame.entries:
            if entries.ledger in self.register.main.ends and self.register.main.record.state is LogState.OPEN:
                raise ViolationError(f"I5: {entries} was sent, and its ledger was ended before")
            numbers = [frame.facts.number] * (entries.end - entries.first)
            self.entries.setdefault(entries.ledger, []).extend(numbers)

    def on_acknowledged(self, lac: int) -> None:
        """The writer told its clients."""
        if not self.acked < lac < len(self.sent):
            raise ViolationError(f"I4: acknowledged {lac} after {self.acked}, sent to {len(self.sent) - 1}")
        record = self.register.log
        assert record is not None, "a log that acknowledges has a record"
        if record.last_frame is not None and lac > record.last_frame:
            raise ViolationError(f"I1: frame {lac} is acknowledged, and the log is closed at {record.last_frame}")
        kept_from = max(self.acked + 1, self.register.main.trimmed_before)  # what is trimmed is in segments
        self._check_durable(record, kept_from, lac, "I2, I6: acknowledged")
        self.acked = lac

    def _check_durable(self, record: LogRecord, first: int, last: int, what: str) -> None:
        for number in range(first, last + 1):
            durable = self._durable(record, number)
            if durable < record.ack_quorum:
                raise ViolationError(f"{what} frame {number} has {durable} durable copies that count")

    def _durable(self, record: LogRecord, number: int) -> int:
        fragment = self.holding(record, number)
        if fragment is None:
            return 0
        return sum(self._has_durably(copy, number) for copy in fragment.copies)

    def holding(self, record: LogRecord, number: int) -> Fragment | None:
        """The fragment that holds a frame, where that of one prepared ahead is known too."""
        holding = None
        for fragment in record.fragments:
            first = fragment.first
            if first is None:
                firsts = [self.files[copy].first for copy in fragment.copies]
                first = next((begun for begun in firsts if begun is not None), None)
            if first is not None and first <= number:
                holding = fragment
        return holding

    def _has_durably(self, copy: Copy, number: int) -> bool:
        file = self.files.get(copy)
        return file is not None and file.first is not None and file.first <= number <= file.ever_durable

    # -- paths ---------------------------------------------------------------------------------------------------------

    def on_ok(self, copy: Copy, watermark: int) -> None:
        """A path answered Ok to its writer."""
        if self._checks_answers and self.files[copy].ever_durable < watermark:
            raise ViolationError(f"I10: {copy} answered Ok for {watermark}, which is not durable")

    def on_fenced(self, copy: Copy) -> None:
        """A path answered that it is fenced."""
        if self._checks_answers and self.files[copy].durable_name == OPEN_NAME:
            raise ViolationError(f"I10: {copy} said fenced, and that is not durable")

    def on_read(self, copy: Copy, answer: ReadAnswer, scanned_under: str | None) -> None:
        """A path answered a recoverer; `scanned_under`: the file's durable name when it was scanned."""
        if answer.end is not End.NO or not self._checks_answers:
            return
        number = answer.start + len(answer.frames)
        if self._has_durably(copy, number):
            raise ViolationError(f"I8: {copy} denied frame {number}, which it had durably")
        if scanned_under != FENCED_NAME:
            raise ViolationError(f"I7: {copy} denied frame {number} without being fenced before it was read")

    # -- the record ----------------------------------------------------------------------------------------------------

    def on_log_commit(self, old: LogRecord | None, new: LogRecord) -> None:
        """The record changed by its `log` key."""
        fault = fault_in(new)
        if fault is not None:
            raise ViolationError(f"I5: the record is not valid: {fault}")
        if old is None:
            return
        if old.state is LogState.CLOSED:
            raise ViolationError("I5: a CLOSED record was changed")
        if old.state is LogState.IN_RECOVERY and new.state is LogState.OPEN:
            raise ViolationError("I5: a log in recovery was opened again")
        self._check_taker(old, new)
        if ended_before(new) > self.acked + 1:
            raise ViolationError(f"I2: a fragment begins at {ended_before(new)}, and the LAC is {self.acked}")
        self._check_ended(old, new)
        if new.last_frame is not None:
            self._check_closed(old, new, new.last_frame)
        else:
            self._check_durable(new, self._begin(new), self.acked, "I2: acknowledged")

    def _check_taker(self, old: LogRecord, new: LogRecord) -> None:
        """Each start of a recovery is a commit of its own, and only the one that started last may close."""
        proposer = new.token.rpartition(":")[0]
        if new.state is LogState.IN_RECOVERY:
            self._taker = proposer
        elif old.state is LogState.IN_RECOVERY and proposer != self._taker:
            raise ViolationError(f"I9: {proposer} closed the log, and {self._taker} had taken it since")

    def _check_ended(self, old: LogRecord, new: LogRecord) -> None:
        floor = ended_before(old)
        kept = {fragment.first: fragment for fragment in new.fragments}
        begin = min((first for first in kept if first is not None), default=0)
        for fragment in old.fragments:
            if fragment.first is not None and begin <= fragment.first < floor and kept.get(fragment.first) != fragment:
                raise ViolationError(f"I5: the ended fragment that begins at {fragment.first} was changed")
        self._check_forgotten(old, new)

    def _check_forgotten(self, old: LogRecord, new: LogRecord) -> None:
        """Check that a fragment that the record no longer names was trimmed, or held no frame that counts."""
        begin = self._begin(new)
        if begin > self._begin(old) and begin > self.register.main.trimmed_before:
            raise ViolationError(f"I11: frames below {begin} are forgotten, and were not trimmed")

    def _begin(self, record: LogRecord) -> int:
        """The first frame that the record can place; behind the end if there is none."""
        if record.fragments:
            return record.fragments[0].first or 0
        return 0 if record.last_frame is None else record.last_frame + 1

    def _check_closed(self, old: LogRecord, record: LogRecord, last: int) -> None:
        if last < self.acked and not (record.given_up and self.is_lost(old, last + 1)):
            raise ViolationError(f"I1: the log is closed at {last}, and {self.acked} is acknowledged")
        if last >= len(self.sent):
            raise ViolationError(f"I4: the log is closed at {last}, which was never sent")
        self._check_durable(record, self._begin(record), last, "I3: of the closed log")
        for fragment in record.fragments:
            for copy in fragment.copies:
                if self.recovered(copy) and not self._has_durably(copy, last):
                    raise ViolationError(f"I3: the closed log names {copy}, which is not whole")
                if any(frame != self.sent[frame.facts.number] for frame in self.files[copy].frames):
                    raise ViolationError(f"I4: {copy} holds another frame than was sent")

    def is_lost(self, record: LogRecord, number: int) -> bool:
        """True if no copy of the frame is readable."""
        holding = self.holding(record, number)
        ends = [self.files[copy].good_end() for copy in holding.copies if self.files[copy].is_there] if holding else []
        return all(end is None or end <= number for end in ends)

    def recovered(self, copy: Copy) -> bool:
        """True if a recovery wrote the file: the writer's have numbers for names."""
        return not copy.file.isdecimal()

    # -- sealing and trimming ------------------------------------------------------------------------------------------

    def readable(self) -> int:
        """The last frame that anybody may have read or sealed."""
        record = self.register.log
        return self.acked if record is None or record.last_frame is None else record.last_frame

    def on_seal_commit(self, old: MainView, commit: SealCommit) -> None:
        """Something was committed under the `seal` key."""
        record = old.record
        if record.state is LogState.IN_RECOVERY:
            raise ViolationError(f"I9: {commit} was committed in a log that is being recovered")
        if commit.opens is not None and record.state is not LogState.OPEN:
            raise ViolationError(f"I9: ledger {commit.opens} was opened when the log was {record.state.name}")
        if commit.sealed_before is not None:
            self._check_seal(old, commit, commit.sealed_before)
        if commit.ends is not None:
            self._check_ends(record, commit.ends)
        if commit.trimmed_before is not None:
            self._check_trim(old, commit.trimmed_before)
        if commit.fragments is not None:
            self._check_prune(old, commit.fragments)

    def _check_seal(self, old: MainView, commit: SealCommit, before: int) -> None:
        if before <= old.sealed_before or before > self.readable() + 1:
            raise ViolationError(f"I1: sealed before {before}, after {old.sealed_before}; the LAC is {self.readable()}")
        sealed = dict(old.sealed)
        for entries in commit.sealed:
            if entries.first != sealed.get(entries.ledger, 0):
                raise ViolationError(f"I5: {entries} was sealed after {sealed.get(entries.ledger, 0)}")
            sealed[entries.ledger] = entries.end
        if sealed != (true := self._ends_before(before)):
            raise ViolationError(f"I11: {sealed} is sealed with the frames before {before}, which hold {true}")

    def _ends_before(self, before: int) -> dict[LedgerId, int]:
        """Behind the last entry of each ledger in frames below `before`."""
        counts = {ledger: sum(number < before for number in numbers) for ledger, numbers in self.entries.items()}
        return {ledger: count for ledger, count in counts.items() if count}

    def _check_ends(self, record: LogRecord, ends: Mapping[LedgerId, EntryId]) -> None:
        """The log's end ends them all; before it, their owner may end those whose entries are all acknowledged."""
        if record.last_frame is None:
            pending = [ledger for ledger in ends if max(self.entries.get(ledger, []), default=NO_FRAME) > self.acked]
            if pending:
                raise ViolationError(f"I1: ledgers {pending} were ended, and not all of their entries are acknowledged")
        true = self._ends_before(len(self.sent) if record.last_frame is None else record.last_frame + 1)
        for ledger, end in ends.items():
            if end != true.get(ledger, 0):
                raise ViolationError(f"I1: ledger {ledger} ends at {true.get(ledger, 0)}, and {end} was committed")

    def _check_trim(self, old: MainView, before: int) -> None:
        record = old.record
        if before <= old.trimmed_before or before > self.readable() + 1:
            raise ViolationError(f"I11: trimmed before {before}, after {old.trimmed_before}")
        if record.last_frame is None and before > ended_before(record):
            raise ViolationError(f"I11: trimmed before {before}, in a fragment that has not ended")
        if record.last_frame is not None and old.unended:
            raise ViolationError(f"I11: a closed log was trimmed, and ledgers {old.unended} have no end")
        for ledger, end in self._ends_before(before).items():
            if old.sealed.get(ledger, 0) < end:
                raise ViolationError(f"I11: entries of {ledger} to {end} are trimmed and not sealed")
        for frame in self.sent[old.trimmed_before : before]:
            for subscription, n in frame.cursors:
                if self.register.snapshots.get(subscription, -1) < n:
                    raise ViolationError(f"I11: cursor record {n} is trimmed and not in a snapshot")

    def _check_prune(self, old: MainView, kept: tuple[Fragment, ...]) -> None:
        record = old.record
        if record.last_frame is None:
            raise ViolationError("I5: a log that is not closed was pruned by another than its writer")
        if kept != record.fragments[len(record.fragments) - len(kept) :]:
            raise ViolationError("I5: another fragment than the first ones was forgotten")
        firsts = [fragment.first or 0 for fragment in record.fragments]
        forgotten = [*firsts, record.last_frame + 1][len(record.fragments) - len(kept)]
        if forgotten > old.trimmed_before:
            raise ViolationError(f"I11: frames below {forgotten} are forgotten, and were not trimmed")
        if not kept and (old.unended or dict(old.sealed) != self._ends_before(record.last_frame + 1)):
            raise ViolationError(f"I11: the log is gone, with ledgers {old.unended} or entries that are not sealed")
        named = {copy for fragment in kept for copy in fragment.copies}
        for fragment in record.fragments:
            for copy in fragment.copies:
                if copy not in named and self.files[copy].is_there:
                    raise ViolationError(f"I11: {copy} is forgotten, and is still on its path")

    def on_delete(self, copy: Copy) -> None:
        """A journal file is about to be deleted."""
        record, trimmed = self.register.log, self.register.main.trimmed_before
        assert record is not None, "there is a log"
        if self.register.main.is_gone:
            return
        for fragment, later in zip(record.fragments, [*record.fragments[1:], None], strict=True):
            end = self.readable() + 1 if later is None or later.first is None else later.first
            if copy in fragment.copies and (end > trimmed or (later is None and record.last_frame is None)):
                raise ViolationError(f"I11: {copy} is deleted, and frames up to {end - 1} are not trimmed")

    # -- readers -------------------------------------------------------------------------------------------------------

    def on_end(self, had: int, ledger: LedgerId, end: int) -> None:
        """A reader looked, and sees a ledger up to here."""
        if end < had and not self._was_cut_short():
            raise ViolationError(f"I12: ledger {ledger} was readable to {had}, and is to {end}")

    def _was_cut_short(self) -> bool:
        """True if the log was closed below its last acknowledged frame, on an operator's command."""
        record = self.register.main.record
        return bool(record.given_up) and record.last_frame is not None and record.last_frame < self.acked

    def on_delivered(self, positions: dict[LedgerId, int], places: Iterable[Place], *, may_skip: bool = False) -> int:
        """A reader gave entries to its user; `positions` is what this one has had before.

        Returns:
            How many entries it went on without, as one may that `may_skip` what is lost.
        """
        skipped = 0
        for place in places:
            missing = range(positions[place.ledger], place.first)
            if may_skip and missing:
                self._check_lost(place.ledger, missing)
                skipped += len(missing)
            elif place.first != positions[place.ledger]:
                raise ViolationError(f"I12: {place} was delivered at {positions[place.ledger]}")
            positions[place.ledger] = place.end
            numbers = self.entries[place.ledger][place.first : place.end]
            if len(numbers) < place.end - place.first or max(numbers) > self.readable():
                raise ViolationError(f"I12: {place} was delivered, and the LAC is {self.readable()}")
            if place.frame is None and place.end > self.register.main.sealed.get(place.ledger, 0):
                raise ViolationError(f"I12: {place} was delivered as sealed")
            if place.frame is not None:
                self._check_place(place, set(numbers))
        return skipped

    def _check_lost(self, ledger: LedgerId, entries: Iterable[int]) -> None:
        """Check that a reader may skip the entries: no segment has them, and no copy can be read up to them."""
        main = self.register.main
        for entry in entries:
            number = self.entries[ledger][entry]
            if entry < main.sealed.get(ledger, 0) or not self.is_lost(main.record, number):
                raise ViolationError(f"I12: entry {ledger}:{entry} in frame {number} was skipped, and is not lost")

    def _check_place(self, place: Place, numbers: set[int]) -> None:
        """The reader's tasks look for the frame in these copies, so one at least must have had it."""
        if numbers != {place.frame}:
            raise ViolationError(f"I4: {place} is in frames {numbers}")
        files = [self.files[copy] for copy in place.copies]
        if not any(f.first is not None and f.first <= (place.frame or 0) < f.first + len(f.frames) for f in files):
            raise ViolationError(f"I12: {place} was delivered, and none of its copies ever had it")
