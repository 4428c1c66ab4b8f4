"""The files of a recovery: frames above the LAC are written back into them, and the closed log names them. No IO.

Frames above the LAC count only here, where this recovery wrote and synced them: in the writer's own files they may
never have been. A file that fails is replaced at once, as the record names none of them before the close.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber
from pulsar_on_spark.ledger.journal.messages import BeginFiles, CreateFile, RecoveryEffect, ReleaseFiles, WriteBack
from pulsar_on_spark.model.ids import PathId


@dataclass(frozen=True, slots=True)
class Held:
    """Frames above the LAC, and the copy that they are written back from."""

    first: FrameNumber
    last: FrameNumber
    source: Copy


class RecoveryFiles:
    """The files of a recovery; none at first.

    Attributes:
        held: Frames to write back, in order.
        targets: The files, each with the last frame that it has durably; None: not created yet.
    """

    def __init__(self, name: str, paths: Sequence[PathId]) -> None:
        """Name files after the recovery; the paths are those that may be written to, best ones first."""
        self._name = name
        self._paths = paths
        self._unfit: set[PathId] = set()
        self._created_files = 0
        self.held: list[Held] = []
        self.targets: dict[Copy, FrameNumber | None] = {}

    def add_targets(self, write_quorum: int) -> list[RecoveryEffect]:
        """Create files on as many paths as there are, up to the write quorum."""
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
        """These frames are written back, too, into all files that are there."""
        self.held.append(Held(first, last, source))
        return [WriteBack(copy, source, first, last) for copy, acked in self.targets.items() if acked is not None]

    def created(self, copy: Copy) -> list[RecoveryEffect]:
        """Send a created file everything that is held."""
        if copy not in self.targets:
            return []
        first = self.held[0].first
        self.targets[copy] = first - 1
        held = [WriteBack(copy, held.source, held.first, held.last) for held in self.held]
        return [BeginFiles((copy,), first), *held]

    def acked(self, copy: Copy, watermark: FrameNumber) -> bool:
        """Note that a file has all frames up to the watermark, durably; return False if that was known."""
        acked = self.targets.get(copy)
        if acked is None or watermark <= acked:
            return False
        self.targets[copy] = watermark
        return True

    def failed(self, copy: Copy) -> list[RecoveryEffect]:
        """Give up a file that failed, or was not created: its path gets no other one."""
        del self.targets[copy]
        self._unfit.add(copy.path)
        return [ReleaseFiles((copy,))]

    def backlog(self, next_frame: FrameNumber, lac: FrameNumber) -> int:
        """Frames that were read and are not in all files yet."""
        acked = [watermark for watermark in self.targets.values() if watermark is not None]
        return next_frame - 1 - min(acked) if acked else next_frame - lac - 1

    def have(self, last: FrameNumber) -> bool:
        """True if all files that the close will name are whole; there is an ack quorum of them."""
        return all(acked is not None and acked >= last for acked in self.targets.values())

    def counted(self) -> tuple[Copy, ...]:
        """Return the files that this recovery wrote and synced."""
        return tuple(self.targets)

    def release(self) -> list[RecoveryEffect]:
        """Write nothing more."""
        return [ReleaseFiles(tuple(self.targets))] if self.targets else []
