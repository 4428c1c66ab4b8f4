"""The frames of a log that are not acknowledged yet: encoded once, chained, and kept for replacement files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pulsar_on_spark.ledger.journal.codec_encode import EncodedFrame, encode_lac, encode_roll
from pulsar_on_spark.ledger.journal.files import log_start
from pulsar_on_spark.ledger.journal.frame_header import ChainPoint
from pulsar_on_spark.ledger.journal.groups import Group
from pulsar_on_spark.ledger.journal.log import FrameFacts, FrameKind, FrameNumber
from pulsar_on_spark.model.ids import IncarnationId


@dataclass(frozen=True, slots=True)
class _Sent:
    """A frame that was sent, and the group that waits for its acknowledgement; None for a LAC or ROLL frame."""

    frame: EncodedFrame
    group: Group | None


class FramesInFlight:
    """The unacknowledged frames of a log; empty whenever all frames are acknowledged."""

    def __init__(self, incarnation: IncarnationId) -> None:
        self._chain = log_start(incarnation)
        self._sent: dict[FrameNumber, _Sent] = {}
        self._rolls = 0

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def next_number(self) -> FrameNumber:
        """The number of the next frame."""
        return self._chain.next_number

    def append(self, facts: FrameFacts, group: Group | None) -> EncodedFrame:
        """Encode the next frame and keep it: the frame of `group`, or a LAC or ROLL frame if `group` is None."""
        assert facts.number == self._chain.next_number, "frames are numbered without gap"
        frame = self._encoded(facts, group)
        self._chain = frame.header.after
        self._sent[facts.number] = _Sent(frame, group)
        return frame

    def between(self, first: FrameNumber, last: FrameNumber) -> Iterator[EncodedFrame]:
        """Iterate over frames `first` to `last`, which are in flight, to send them again."""
        return (self._sent[number].frame for number in range(first, last + 1))

    def point_before(self, first: FrameNumber) -> ChainPoint | None:
        """Return the chain position for the header of a file that begins with frame `first`; None until it is known."""
        if first > self._chain.next_number:
            return None
        if first == self._chain.next_number:
            return self._chain
        return ChainPoint(first, self._sent[first].frame.header.previous_crc)

    def forget_up_to(self, lac: FrameNumber) -> list[Group]:
        """Drop the frames up to `lac`, which are acknowledged, and return their groups in order."""
        acknowledged = [self._sent.pop(number) for number in range(min(self._sent), lac + 1)]
        return [sent.group for sent in acknowledged if sent.group is not None]

    def take_groups(self) -> list[Group]:
        """Drop all frames, and return their groups in order."""
        groups = [sent.group for sent in self._sent.values() if sent.group is not None]
        self._sent.clear()
        return groups

    def _encoded(self, facts: FrameFacts, group: Group | None) -> EncodedFrame:
        if group is not None:
            return group.encode(self._chain, facts.lac)
        if facts.kind is FrameKind.ROLL:
            self._rolls += 1
            return encode_roll(self._rolls, self._chain, facts.lac)
        assert facts.kind is FrameKind.LAC, "no other kind is written"
        return encode_lac(self._chain, facts.lac)
