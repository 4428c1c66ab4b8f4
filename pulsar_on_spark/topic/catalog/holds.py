"""The check that a root's cold storage paths are claimed by it: otherwise it must not change or judge copies on them.

In this module, a cold path is any path whose role is in `APART`: this includes history paths.

A cold path has a claim: an object or file on it that names the one root that may change it, and has a token.
`topic.maintenance.files.claims` replaces it with each change. If the claim is not this root's, another copy of the root
has changed the path, or the path is in an earlier state, such as a bucket restored from a snapshot. In both cases,
files that are missing or bad there may be good later, as on an unreachable path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.claim import UNCLAIMED, Claim, named, read_claim
from pulsar_on_spark.storage.health import APART, Hold, PathHealth
from pulsar_on_spark.storage.loss import unreachable
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

ATTEMPTS: Final = 10
"""Maximum number of attempts to read or replace a claim, while other processes replace it, too."""


@dataclass(frozen=True, slots=True)
class Unheld:
    """The state of a cold path that this root must not change now, and the reason.

    Attributes:
        hold: FOREIGN if another root has claimed the path, UNKNOWN if the claim cannot be read.
        reason: The reason in a sentence, for errors and status.
    """

    hold: Hold
    reason: str


def is_ours(found: Claim, tokens: Sequence[str], root: str) -> bool:
    """Return True if a cold path's claim has one of these tokens, and names the root `root` or no root."""
    return found.token in tokens and found.root in ("", root)


def known_tokens(record: PathRecord) -> tuple[str, ...]:
    """Return the tokens, the oldest first, of which the path's claim must have one if it is this root's."""
    return record.claims or (UNCLAIMED,)


def claimed_paths(root: RootHandle, view: View, path_ids: Iterable[PathId]) -> list[StoragePath]:
    """Return the cold and history paths among the given paths, which have claims; retired paths are left out."""
    paths = root.storage_paths(view)
    apart = {PathId(record.path_id) for record in view.all(PathRecord) if record.role in APART}
    return [paths[path_id] for path_id in sorted(apart.intersection(path_ids, paths))]


def unheld_paths(root: RootHandle, view: View, path_ids: Iterable[PathId]) -> dict[PathId, Unheld]:
    """Return the state of each given path that the root must not change, and whose copies it must not judge now.

    They are the cold paths that another copy of the root has claimed, or whose claim cannot be read.

    Raises:
        MetadataError: the metadata cannot be read.
    """
    found = {path.path_id: _unheld(root, path) for path in claimed_paths(root, view, path_ids)}
    return {path_id: unheld for path_id, unheld in found.items() if unheld is not None}


def examine_paths(root: RootHandle, view: View) -> dict[PathId, PathHealth]:
    """Examine all storage paths (see `RootHandle.examine_paths`), and read the claims on the cold ones.

    Raises:
        MetadataError: the metadata cannot be read.
    """
    health = root.examine_paths(view)
    for path_id, unheld in unheld_paths(root, view, [each for each in health if health[each].is_readable]).items():
        health[path_id] = replace(health[path_id], hold=unheld.hold, reason=unheld.reason)
    return health


def require_held(root: RootHandle, view: View, file: FileRecord) -> None:
    """Check that all cold paths with copies of a file are claimed by this root, so that it may report the file as lost.

    A path that the operator gave up as lost is not checked.

    Raises:
        CopiesUnreachableError: a copy is on a cold path that the root must not judge now.
        MetadataError: the metadata cannot be read.
    """
    lost = {record.path_id for record in view.all(PathRecord) if record.state == "lost"}
    unheld = unheld_paths(root, view, [PathId(path_id) for path_id in file.copies if path_id not in lost])
    if unheld:
        raise unreachable(f"File {file.file_id}", " ".join(each.reason for each in unheld.values()))


def busy(path: StoragePath) -> StoragePathError:
    """Return the error for a path whose claim other processes replaced during each of `ATTEMPTS` attempts."""
    return StoragePathError(f"{path} was claimed by other processes in each of {ATTEMPTS} attempts: try again.")


def refusal(path: StoragePath, found: Claim, own: str) -> str:
    """Return the sentence that explains why the root named `own` must not change a path with this claim."""
    what = (
        f"is claimed by the root {found.root}, and this root is {own}"
        if found.root not in ("", own)
        else "was changed by another copy of this root, or is in an earlier state than this root left it in"
    )
    return (
        f"Storage path {path.path_id} ({path.place}) {what}, so this root only reads from it: if this root was moved, "
        f"or is the one that is to keep the path, run `pulsarpy storage resume {path.path_id}` once; if it is a copy, "
        "give it a path of its own."
    )


def _unheld(root: RootHandle, path: StoragePath) -> Unheld | None:
    """Return the state of a path whose claim is not this root's, or cannot be read; None if the claim is this root's.

    The claim is read again if a maintenance pass replaces it meanwhile.
    """
    try:
        own = named(root.place)
        for _ in range(ATTEMPTS):
            found = read_claim(path)
            record = root.store.view().get(PathRecord, str(path.path_id))
            if record is None or is_ours(found, known_tokens(record), own):
                return None
            if read_claim(path) == found:
                return Unheld(Hold.FOREIGN, refusal(path, found, own))
        raise busy(path)
    except StoragePathError as error:
        return Unheld(Hold.UNKNOWN, str(error))
