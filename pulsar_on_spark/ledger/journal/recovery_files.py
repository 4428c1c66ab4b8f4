"""The files into which a recovery writes back frames above the LAC, and which the closed log's record names. No IO.

Frames above the LAC count only in these files, where the recovery wrote and synced them: the writer's own files may
lack them. A file that fails can be replaced at once, because the record names none of these files before the close.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber
from pulsar_on_spark.ledger.journal.messages import BeginFiles, CreateFile, RecoveryEffect, ReleaseFiles, WriteBack
from pulsar_on_spark.model.ids import PathId


@dataclass(frozen=True, slots=True)
class Held:
    """Frames [first, last] above the LAC, and the copy from which they are written back."""

    first: FrameNumber
    last: FrameNumber
    source: Copy


class RecoveryFiles:
    """The set of a recovery's files, which is empty at first.

    Attributes:
        held: The frames to write back, in order.
        targets: The files, each with its last durable frame; None for a file that is not created yet.
    """

    def __init__(self, name: str, paths: Sequence[PathId]) -> None:
        """Create an empty set.

        Args:
            name: The recovery's name; the names of its files begin with it.
            paths: Ids of the paths that may be written to, best ones first.
        """
        self._name = name
        self._paths = paths
        self._unfit: set[PathId] = set()
        self._created_files = 0
        self.held: list[Held] = []
        self.targets: dict[Copy, FrameNumber | None] = {}

    def add_targets(self, write_quorum: int) -> list[RecoveryEffect]:
        """Create files up to the write quorum, or fewer if no more paths are fit."""
        used = {copy.path for copy in self.targets}
        free = [path for path in self._paths if path not in used and path not in self._unfit]
        effects: list[RecoveryEffect] = []
        for path in free[: write_quorum - len(self.targets)]:
            copy = Copy(path, f"{self._name}-{self._created_files}")
            self._created_files += 1
            self.targets[copy] = None
            effects.append(CreateFile(copy))
        return effects

    def write_back_frames(self, first: FrameNumber, last: FrameNumber, source: Copy) -> list[RecoveryEffect]:
        """Write more frames back, into all files that were created so far."""
        self.held.append(Held(first, last, source))
        return [WriteBack(copy, source, first, last) for copy, acked in self.targets.items() if acked is not None]

    def created(self, copy: Copy) -> list[RecoveryEffect]:
        """Begin a file that was created, and write all frames in `held` back into the file."""
        if copy not in self.targets:
            return []
        first = self.held[0].first
        self.targets[copy] = first - 1
        held = [WriteBack(copy, held.source, held.first, held.last) for held in self.held]
        return [BeginFiles((copy,), first), *held]

    def acked(self, copy: Copy, watermark: FrameNumber) -> bool:
        """Record that a file durably has all frames up to the watermark. Return True if that is new."""
        acked = self.targets.get(copy)
        if acked is None or watermark <= acked:
            return False
        self.targets[copy] = watermark
        return True

    def failed(self, copy: Copy) -> list[RecoveryEffect]:
        """Give up a file that failed or was not created; its path gets no further file."""
        del self.targets[copy]
        self._unfit.add(copy.path)
        return [ReleaseFiles((copy,))]

    def backlog(self, next_frame: FrameNumber, lac: FrameNumber) -> int:
        """Return the number of frames that were read and are not yet durable in every file.

        `next_frame` is the next frame to read, `lac` the frame before the first one that is written back.
        """
        acked = [watermark for watermark in self.targets.values() if watermark is not None]
        return next_frame - 1 - min(acked) if acked else next_frame - lac - 1

    def have(self, last: FrameNumber) -> bool:
        """Return True if all files have every frame up to `last`; the caller checks that they are an ack quorum."""
        return all(acked is not None and acked >= last for acked in self.targets.values())

    def dispensable(self, last: FrameNumber, ack_quorum: int) -> list[Copy]:
        """Return the files that lack frames up to `last`, if an ack quorum of other files has all these frames."""
        lacking = [copy for copy, acked in self.targets.items() if acked is None or acked < last]
        return lacking if len(self.targets) - len(lacking) >= ack_quorum else []

    def counted(self) -> tuple[Copy, ...]:
        """Return the files, to be named in the closed log's record."""
        return tuple(self.targets)

    def release(self) -> list[RecoveryEffect]:
        """Close the files after the writes that are queued for them."""
        return [ReleaseFiles(tuple(self.targets))] if self.targets else []
