"""The copies of a file that count, and the actions for those that don't. No IO, no clock.

    path                                        its copies                               new copies go there
    ------------------------------------------  ---------------------------------------  -------------------
    writable                                    count                                    yes
    read-only                                   count                                    no
    to be checked; away for less than a while   neither count nor are replaced           no
    draining                                    are read, and replaced elsewhere         no
    lost; retired; away for longer              are not believed, and replaced           no

A copy leaves a file's record only if as many others as the file needs count, and are at their places under the names in
the record. So whatever is interrupted, and whatever other workers do, a record never names fewer good copies than
before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.health import PathHealth
from pulsar_on_spark.storage.placement import next_apart, preferred


class Trust(Enum):
    """The worth of copies on a path."""

    COUNTS = "they count"
    PENDING = "it will turn out: they neither count nor are replaced"
    LEAVING = "they are good to read from, and are replaced elsewhere"
    GONE = "they are not believed, and are replaced elsewhere"


def trust_in(path: PathHealth) -> Trust:
    """Decide what the copies on a path are worth."""
    if path.state in ("lost", "retired"):
        return Trust.GONE
    if path.state == "draining":
        return Trust.LEAVING if path.is_there else Trust.GONE
    if not path.is_there:
        return Trust.GONE if path.is_overdue else Trust.PENDING
    return Trust.COUNTS if path.is_checked else Trust.PENDING


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The repair of one file.

    Attributes:
        file: Its record when the plan was made.
        wanted: How many copies it shall have.
        counted: Paths whose copies count.
        sources: Where to read, the best first.
        targets: Where copies are to be written: first in place of bad ones, then on new paths.
        leaving: Paths that leave the record once enough copies count.
        lacking: Copies for which there is no path.
        away: Paths of copies that cannot be reached and may be good: without them nothing is lost yet.
    """

    file: FileRecord
    wanted: int
    counted: tuple[PathId, ...]
    sources: tuple[PathId, ...]
    targets: tuple[PathId, ...]
    leaving: tuple[PathId, ...]
    lacking: int
    away: tuple[PathId, ...] = ()

    @property
    def is_idle(self) -> bool:
        """True if nothing can be done."""
        enough = len(self.counted) + len(self.targets) >= self.wanted
        return not self.targets and not (self.leaving and enough)


def plan_file(file: FileRecord, wanted: int, paths: Mapping[PathId, PathHealth], bad: Collection[PathId]) -> FilePlan:
    """Plan the repair of a file.

    Args:
        file: Its record.
        wanted: The write quorum of the root, for a file whose record has none.
        paths: All storage paths but those that were retired.
        bad: Paths on which its copy is known to be bad or missing.
    """
    wanted = file.write_quorum or wanted
    copies = [PathId(path_id) for path_id in file.copies]
    by_trust: dict[Trust, list[PathId]] = {trust: [] for trust in Trust}
    for path_id in copies:
        by_trust[_trust(paths, path_id)].append(path_id)
    counted = [path_id for path_id in by_trust[Trust.COUNTS] if path_id not in bad]
    pending = [path_id for path_id in by_trust[Trust.PENDING] if path_id not in bad]
    leaving = [*by_trust[Trust.LEAVING], *by_trust[Trust.GONE]]
    spoilt = [path_id for path_id in copies if path_id in bad and path_id not in leaving]

    needed = file.missing_copies(wanted, {*counted, *pending})
    in_place = [path_id for path_id in spoilt if paths[path_id].is_writable][:needed]
    used = [paths[path_id].label for path_id in (*counted, *pending, *in_place)]
    free = preferred((each for each in paths.values() if each.is_writable and each.path_id not in copies), file.file_id)
    added: list[PathId] = []
    while free and len(added) < needed - len(in_place):
        chosen = next_apart(free, used)
        free.remove(chosen)
        used.append(chosen.label)
        added.append(chosen.path_id)
    best_first = (*counted, *by_trust[Trust.LEAVING], *pending, *spoilt)
    return FilePlan(
        file=file,
        wanted=wanted,
        counted=tuple(counted),
        sources=tuple(path_id for path_id in dict.fromkeys(best_first) if paths[path_id].is_readable),
        targets=(*in_place, *added),
        leaving=tuple(path_id for path_id in (*leaving, *spoilt) if path_id not in in_place),
        lacking=needed - len(in_place) - len(added),
        away=tuple(path_id for path_id in copies if path_id in paths and paths[path_id].is_away),
    )


def copies_named(now: FileRecord, plan: FilePlan, restored: Sequence[PathId]) -> tuple[int, ...]:
    """The copies that a file's record shall name first, on the view that commits: nothing leaves it yet.

    Args:
        now: The current record.
        plan: The plan.
        restored: Those of its targets that got a copy.
    """
    room = plan.wanted - len(_good(now, plan, restored))
    added = [path_id for path_id in restored if path_id not in now.copies]
    return (*now.copies, *added[: max(room, 0)])


def copies_left(now: FileRecord, plan: FilePlan, restored: Sequence[PathId]) -> tuple[int, ...]:
    """The copies that it shall name when those that it names were found in their places (arguments as there)."""
    is_enough = len(_good(now, plan, restored)) >= plan.wanted
    return tuple(path_id for path_id in now.copies if not (is_enough and path_id in plan.leaving))


def _good(now: FileRecord, plan: FilePlan, restored: Sequence[PathId]) -> list[int]:
    """Return the copies that count; copies that the plan did not know are another worker's, which has verified them."""
    known = set(plan.file.copies)
    return [path_id for path_id in now.copies if path_id in (*plan.counted, *restored) or path_id not in known]


def _trust(paths: Mapping[PathId, PathHealth], path_id: PathId) -> Trust:
    known = paths.get(path_id)
    return Trust.GONE if known is None else trust_in(known)
