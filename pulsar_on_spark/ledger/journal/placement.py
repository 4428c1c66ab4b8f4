"""Choice of the storage paths for a writer's new files. No IO, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pulsar_on_spark.ledger.journal.log import Copy
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.placement import next_apart


@dataclass(frozen=True, slots=True)
class _Offered:
    """An offered path; better ones come first."""

    path_id: PathId
    label: str
    weight: int = 1


class Placement:
    """The paths on which new journal files may be created, best ones first. Each file gets an unused name.

    The copies of a fragment go to paths with different labels (racks) if enough of them are available.
    """

    def __init__(self, quorum: Quorum) -> None:
        """Create a placement without paths; `offer_path` adds them."""
        self._quorum = quorum
        self._paths: dict[PathId, _Offered] = {}
        self._failed: set[PathId] = set()
        self._files = 0

    def offer_path(self, path: PathId, label: str = "") -> None:
        """Add a new path, or a failed path that works again; its failed files stay failed. `label` is its rack."""
        self._failed.discard(path)
        self._paths[path] = _Offered(path, label)

    def fail(self, path: PathId) -> None:
        """Exclude a path, which failed or was withdrawn, until it is offered again."""
        self._failed.add(path)

    def can_leave(self, copies: Collection[Copy]) -> bool:
        """Return True if some copies are on excluded paths, and an ack quorum of other paths is available."""
        return any(copy.path in self._failed for copy in copies) and (
            len(self._paths.keys() - self._failed) >= self._quorum.ack
        )

    def can_widen(self, copies: Collection[Copy]) -> bool:
        """Return True if there are fewer copies than the write quorum, and a path for one more copy is available."""
        used = {copy.path for copy in copies}
        return len(copies) < self._quorum.write and not self._failed.union(used).issuperset(self._paths)

    def placed(
        self, copies: tuple[Copy, ...], lost: Collection[Copy], preferred: Iterable[PathId]
    ) -> tuple[Copy, ...] | None:
        """Replace lost copies by new files on spare paths, up to the write quorum.

        Args:
            copies: The copies of a fragment; empty for a new fragment.
            lost: Files that have failed.
            preferred: Paths to choose before others.

        Returns:
            The sound and new copies, or `copies` if none is lost; None if fewer than the ack quorum are possible.
        """
        kept_paths = {copy.path for copy in copies if copy not in lost}
        if len(kept_paths) == len(copies) > 0:
            return copies
        order = dict.fromkeys([*preferred, *self._paths])
        spares = [self._paths[path] for path in order if path not in self._failed and path not in kept_paths]
        labels = [self._paths[path].label for path in kept_paths]
        chosen: list[Copy] = []
        self._files += 1
        while spares and len(kept_paths) + len(chosen) < self._quorum.write:
            spare = next_apart(spares, labels)
            spares.remove(spare)
            labels.append(spare.label)
            chosen.append(Copy(spare.path_id, str(self._files)))
        new = iter(chosen)
        replaced = [next(new, None) if copy in lost else copy for copy in copies]
        placed = (*(copy for copy in replaced if copy is not None), *new)
        return placed if len(placed) >= self._quorum.ack else None
