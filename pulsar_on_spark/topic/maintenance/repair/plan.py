"""The plan of a file's repair: the copies that count, and the treatment of the others. No IO, no clock.

    path                                           its copies                             gets new copies
    ---------------------------------------------  -------------------------------------  ---------------
    writable                                       count                                  yes
    read-only                                      count                                  no
    to be checked; unreachable for a short time    neither count nor are replaced         no
    cold, and changed by another copy of the root  neither count nor are replaced         no
    draining                                       are read, and replaced elsewhere       no
    lost; retired; unreachable for a longer time   do not count, and are replaced         no

A cold path that is unreachable for a longer time is treated as if for a short time, because usually no other path has
its files.

An offloaded file needs one copy on a cold path, whose label is the offload driver that the file's topics name. Its
copies on other paths neither count nor are replaced: they are read, and `topic.maintenance.offload` deletes them later,
also on a path that is draining. An offloaded file is *stranded* if it still has copies on other paths, and either its
cold path is unreachable for a longer time, or it has no good copy on a cold path and no cold path can take a copy. A
stranded file needs as many copies on other paths as before it was offloaded. A file that was not offloaded needs copies
only on paths that are not cold.

A commit removes a copy from a file's record only if enough other copies count. So a record never names fewer good
copies than before, whatever is interrupted and whatever other workers do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.ids import PathId, SegmentName
from pulsar_on_spark.storage.health import Hold, PathHealth
from pulsar_on_spark.storage.placement import next_apart, preferred


class Trust(Enum):
    """The treatment of the copies on a path; see the module's table."""

    COUNTS = "they count"
    PENDING = "they may be good: they neither count nor are replaced"
    LEAVING = "they are read, and are replaced on other paths"
    GONE = "they do not count, and are replaced on other paths"


def trust_in(path: PathHealth) -> Trust:
    """Return the treatment of the copies on a path of this health."""
    if path.state in ("lost", "retired"):
        return Trust.GONE
    if path.state == "draining":
        return Trust.LEAVING if path.is_there else Trust.GONE
    if not path.is_there:
        return Trust.GONE if path.is_overdue and not path.is_cold else Trust.PENDING
    return Trust.COUNTS if path.is_checked and path.hold is Hold.OURS else Trust.PENDING


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The repair of one file.

    Attributes:
        file: The file's record when the plan was made.
        wanted: The number of copies that the file needs.
        counted: Paths whose copies count.
        sources: Paths to read copies from, the best first.
        targets: Paths to write copies to: first those of bad copies, then new paths.
        leaving: Paths to remove from the record once enough copies count.
        lacking: Number of copies that the file needs but no path can take.
        away: Paths of copies that cannot be reached and may be good; if there are any, the file is not lost.
        beside: Paths whose copies are read and do not count: for an offloaded file, those that are not cold; for a
            stranded file, those that are cold.
    """

    file: FileRecord
    wanted: int
    counted: tuple[PathId, ...]
    sources: tuple[PathId, ...]
    targets: tuple[PathId, ...]
    leaving: tuple[PathId, ...]
    lacking: int
    away: tuple[PathId, ...] = ()
    beside: tuple[PathId, ...] = ()

    @property
    def is_idle(self) -> bool:
        """True if the plan neither writes a copy nor removes a path from the file's record."""
        enough = len(self.counted) + len(self.targets) >= self.wanted
        return not self.targets and not (self.leaving and enough)


def is_stranded(
    file: FileRecord, paths: Mapping[PathId, PathHealth], bad: Collection[PathId], drivers: Collection[str] = ()
) -> bool:
    """Return True if an offloaded file needs its copies on paths that are not cold (see the module's text)."""
    known = [paths[PathId(path_id)] for path_id in file.copies if path_id in paths and path_id not in bad]
    cold = [path for path in known if path.is_cold and trust_in(path) is not Trust.GONE]
    if not file.is_cold or any(path.is_there or not path.is_overdue for path in cold):
        return False
    has_others = any(path.is_readable and not path.is_cold for path in known)
    return has_others and (bool(cold) or not any(_takes(path, True, drivers) for path in paths.values()))


def plan_file(
    file: FileRecord,
    wanted: int,
    paths: Mapping[PathId, PathHealth],
    bad: Collection[PathId],
    drivers: Collection[str] = (),
) -> FilePlan:
    """Plan the repair of a file.

    Args:
        file: The file's record.
        wanted: The root's write quorum, for a file whose record has none.
        paths: All storage paths, without retired ones.
        bad: Paths on which the file's copy is known to be bad or missing.
        drivers: The offload drivers that the topics of an offloaded file name. A cold path gets a new copy only if its
            label equals all of them, so no path does if the topics name different drivers.
    """
    is_cold = file.is_cold and not is_stranded(file, paths, bad, drivers)
    wanted = 1 if is_cold else file.write_quorum or wanted
    copies = [PathId(path_id) for path_id in file.copies]
    by_trust: dict[Trust, list[PathId]] = {trust: [] for trust in Trust}
    for path_id in copies:
        by_trust[_trust(paths, path_id)].append(path_id)
    good = [*by_trust[Trust.COUNTS], *by_trust[Trust.PENDING], *(by_trust[Trust.LEAVING] if is_cold else ())]
    beside = [path_id for path_id in good if path_id not in bad and paths[path_id].is_cold is not is_cold]
    counted = [path_id for path_id in by_trust[Trust.COUNTS] if path_id not in (*bad, *beside)]
    pending = [path_id for path_id in by_trust[Trust.PENDING] if path_id not in (*bad, *beside)]
    leaving = [path_id for path_id in (*by_trust[Trust.LEAVING], *by_trust[Trust.GONE]) if path_id not in beside]
    spoilt = [path_id for path_id in copies if path_id in bad and path_id not in leaving]

    needed = max(wanted - len(counted) - len(pending), 0)
    mendable = [path_id for path_id in spoilt if paths[path_id].is_writable and paths[path_id].is_cold is is_cold]
    in_place = mendable[:needed]
    used = [paths[path_id].label for path_id in (*counted, *pending, *in_place)]
    free = preferred(
        (health for health in paths.values() if _takes(health, is_cold, drivers) and health.path_id not in copies),
        file.file_id,
    )
    added: list[PathId] = []
    while free and len(added) < needed - len(in_place):
        chosen = next_apart(free, used)
        free.remove(chosen)
        used.append(chosen.label)
        added.append(chosen.path_id)
    best_first = (*counted, *beside, *by_trust[Trust.LEAVING], *pending, *spoilt)
    return FilePlan(
        file=file,
        wanted=wanted,
        counted=tuple(counted),
        sources=tuple(path_id for path_id in dict.fromkeys(best_first) if paths[path_id].is_readable),
        targets=(*in_place, *added),
        leaving=tuple(path_id for path_id in (*leaving, *spoilt) if path_id not in in_place),
        lacking=needed - len(in_place) - len(added),
        away=tuple(path_id for path_id in copies if path_id in paths and paths[path_id].is_away),
        beside=tuple(beside),
    )


def names_after(now: FileRecord, plan: FilePlan, restored: Mapping[PathId, SegmentName]) -> dict[int, SegmentName]:
    """Return the copies that a file's record names after the commit, by path in the order of reading.

    A new copy replaces the bad copy on its path. Copies on new paths are added if they are needed. If enough copies
    count then, the copies that the plan lists as leaving are removed. Copies that another worker has made since the
    plan are good, and are kept.

    Args:
        now: The file's record in the view of the commit.
        plan: The plan.
        restored: The new copies, by path.
    """
    planned = plan.file.names
    names: dict[int, SegmentName] = dict(now.names)
    by_others = {
        path_id for path_id, name in names.items() if planned.get(path_id) != name and path_id not in plan.beside
    }
    in_place: dict[int, SegmentName] = {
        path_id: name for path_id, name in restored.items() if path_id in names and path_id not in by_others
    }
    names |= in_place
    good = {path_id for path_id in names if path_id in by_others or path_id in in_place or path_id in plan.counted}
    added = [path_id for path_id in restored if path_id not in names][: max(plan.wanted - len(good), 0)]
    names |= {path_id: restored[path_id] for path_id in added}
    good.update(added)
    if len(good) < plan.wanted:
        return names
    return {path_id: name for path_id, name in names.items() if path_id in good or path_id not in plan.leaving}


def _trust(paths: Mapping[PathId, PathHealth], path_id: PathId) -> Trust:
    health = paths.get(path_id)
    return Trust.GONE if health is None else trust_in(health)


def _takes(path: PathHealth, is_cold: bool, drivers: Collection[str]) -> bool:
    """Return True if the path may get new copies: of offloaded files if `is_cold` is True, else of all others."""
    if not path.is_writable or path.role in ("journal", "history") or path.is_cold is not is_cold:
        return False
    return not is_cold or has_drivers(path.label, drivers)


def has_drivers(label: str, drivers: Collection[str]) -> bool:
    """Return True if a cold path with this label may get files whose topics name these drivers."""
    return all(driver == label for driver in drivers)
