"""The answers of copies to a recovery, and the conclusions that they allow. No IO, no clock.

A frame exists if one copy has it. It does not exist if enough copies lack it that the others are no ack quorum. An
unknown answer counts as "lacks it" only if an operator has given the path up, and every other copy has answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pulsar_on_spark.ledger.journal.copy_protocol import End
from pulsar_on_spark.ledger.journal.log import NO_FRAME, Copy, FrameKind, FrameNumber
from pulsar_on_spark.ledger.journal.messages import CopyFenced, CopyRead, CopySilent, ReadCopy
from pulsar_on_spark.model.ids import PathId


@dataclass(slots=True)
class Source:
    """The answers of one copy to reads.

    The copy has the frames up to `last`. `asked` is True while a request is open. `end` is its statement about the
    frame after `last`, None while there may be more to read. `roll_at` is the last ROLL frame that it returned, None if
    it returned none.
    """

    last: FrameNumber
    asked: bool = False
    end: End | None = None
    roll_at: FrameNumber | None = None


class Answers:
    """The answers of all copies.

    Attributes:
        given_up: Ids of the paths that an operator has given up.
    """

    def __init__(self) -> None:
        self.given_up: set[PathId] = set()
        self._ack_quorum = 0
        self._fences: dict[Copy, CopyFenced | CopySilent | None] = {}
        self._sources: dict[Copy, Source] = {}

    # -- fences --------------------------------------------------------------------------------------------------------

    def expect_fences(self, copies: Iterable[Copy], ack_quorum: int) -> None:
        """Expect answers to fence requests from these copies of all fragments that the writer may still append to."""
        self._ack_quorum = ack_quorum
        self._fences = dict.fromkeys(copies)

    @property
    def asked_to_fence(self) -> Collection[Copy]:
        """The copies that were passed to `expect_fences`."""
        return self._fences

    def lacks_fence(self, copy: Copy) -> bool:
        """Return True if the copy was asked to fence and has not answered yet."""
        return copy in self._fences and self._fences[copy] is None

    def fenced(self, answer: CopyFenced | CopySilent) -> None:
        """Record a copy's answer to its fence request, or that it will not answer."""
        self._fences[answer.copy] = answer

    def is_fenced(self, copies: Collection[Copy]) -> bool:
        """Return True if no new frame can reach an ack quorum of these copies, or all unfenced copies were given up."""
        unfenced = [copy for copy in copies if not (isinstance(got := self._fences[copy], CopyFenced) and got.fenced)]
        if len(copies) - len(unfenced) >= self._threshold(len(copies)):
            return True
        return self.have_answered(copies) and self.given_up.issuperset(copy.path for copy in unfenced)

    def have_answered(self, copies: Iterable[Copy]) -> bool:
        """Return True if all of these copies have answered, or will not answer, their fence requests."""
        return all(self._fences[copy] is not None for copy in copies)

    def known_lacs(self) -> list[FrameNumber]:
        """Return the LAC of each copy that answered its fence request."""
        return [answer.lac for answer in self._fences.values() if isinstance(answer, CopyFenced)]

    def first_frames(self, copies: Iterable[Copy]) -> list[FrameNumber]:
        """Return the first frames that these copies report; an empty file reports none."""
        answers = [self._fences[copy] for copy in copies]
        firsts = [answer.first for answer in answers if isinstance(answer, CopyFenced)]
        return [first for first in firsts if first is not None]

    def lacks_first_frame(self, copies: Collection[Copy]) -> bool:
        """Return True if a copy knows a LAC although no copy has reported a first frame.

        That copy has lost its first frames, for example because an object was deleted by hand; another copy may have
        them.
        """
        answers = [answer for copy in copies if isinstance(answer := self._fences[copy], CopyFenced)]
        return any(answer.lac != NO_FRAME for answer in answers) and all(answer.first is None for answer in answers)

    def _threshold(self, copies: int) -> int:
        """Return the number of copies that must lack a frame so that the others are no ack quorum."""
        return copies - self._ack_quorum + 1

    # -- frames --------------------------------------------------------------------------------------------------------

    def begin(self, copies: Sequence[Copy], next_frame: FrameNumber) -> None:
        """Begin to read one fragment's copies from a frame on; a copy is read after its answer to the fence request."""
        self._sources = {copy: Source(next_frame - 1, asked=self._fences[copy] is None) for copy in copies}

    def late(self, answer: CopyFenced | CopySilent) -> bool:
        """Record a late answer to a fence request.

        The copy can be read from now on, since it takes one request at a time.

        Returns:
            True if the copy is one of the copies to read, else False.
        """
        source = self._sources.get(answer.copy)
        if source is None:
            return False
        source.asked = False
        source.end = End.UNKNOWN if isinstance(answer, CopySilent) else source.end
        return True

    def read(self, answer: CopyRead | CopySilent) -> bool:
        """Record a copy's answer to a read, or that it will not answer.

        Return True, or False if no answer was awaited.
        """
        source = self._sources.get(answer.copy)
        if source is None or not source.asked:
            return False
        source.asked = False
        if isinstance(answer, CopySilent):
            source.end = End.UNKNOWN
            return True
        if answer.frames:
            source.last = answer.frames[-1].number
            if answer.frames[-1].kind is FrameKind.ROLL:
                source.roll_at = source.last
        source.end = None if answer.end is End.MORE else answer.end
        return True

    def holder(self, frame: FrameNumber) -> tuple[Copy, Source] | None:
        """Return a copy that is known to have the frame, and its answers; None if no copy is."""
        return next(((copy, source) for copy, source in self._sources.items() if source.last >= frame), None)

    def ask(self, frame: FrameNumber, limit: int) -> list[ReadCopy]:
        """Request frames from every copy that may have `frame` and has no open request."""
        effects = []
        for copy, source in self._sources.items():
            if source.end is None and not source.asked:
                source.asked, source.last = True, frame - 1
                effects.append(ReadCopy(copy, frame, limit))
        return effects

    @property
    def is_waiting(self) -> bool:
        """True if a copy has an open read request."""
        return any(source.asked for source in self._sources.values())

    @property
    def is_complete(self) -> bool:
        """True if every copy has made its statement about the frame after the last frame that it returned."""
        return all(source.end is not None for source in self._sources.values())

    def is_negative(self) -> bool:
        """Return True if the requested frame can never have been acknowledged, or its loss is accepted.

        A short or bad last frame may be an acknowledged frame that was damaged later. It counts as "lacks it" only if
        the whole write set was read and no copy was good.
        """
        noes = sum(source.end is End.NO for source in self._sources.values())
        torn = sum(source.end is End.TORN for source in self._sources.values())
        copies = len(self._sources)
        if noes >= self._threshold(copies) or self._torn_counts(noes, torn, copies):
            return True
        unknown = self._unknown()
        return noes + torn + len(unknown) == copies and self.given_up.issuperset(copy.path for copy in unknown)

    @property
    def misses_given_up(self) -> bool:
        """True if a copy on a given-up path gave no known answer about the next frame."""
        return not self.given_up.isdisjoint(copy.path for copy in self._unknown())

    def _unknown(self) -> list[Copy]:
        """Return the copies whose answer is unknown."""
        return [copy for copy, source in self._sources.items() if source.end is End.UNKNOWN]

    def _torn_counts(self, noes: int, torn: int, copies: int) -> bool:
        return noes + torn == copies
