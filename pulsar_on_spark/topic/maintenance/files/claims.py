"""Claims: of several copies of a root that share a cold path, only one changes it; the others only read from it.

The same is true of history paths: what is said of cold paths here holds for all paths with a role of `APART`.

A copy of a root's folder, made by `cp -a` or by a snapshot of its disk, names the same cold paths as the root. If both
moved and deleted files there, each would delete as garbage what only the other one's metadata name. So before a commit
or a collection changes a cold path, it replaces the path's claim:

    read the claim  ->  is it ours?  ->  one commit: a new token is ours, too  ->  replace the claim read
                              │ no
                              └─> another copy of the root has changed the path since we did: change nothing

A claim is ours if the root's metadata name its token, and if it names this root's place. A copy of the metadata names
the same tokens, so a copy that acts first is known by its place, and a later change of either one by the token. A root
that was moved is like a copy: an operator says which one is to keep the path.

Tokens are random. A token is in the root's metadata before it is on the path, so a kill leaves a claim that is known.
The claim is replaced only as it was read. So tokens that were added before that of the present claim can never get to
the path later, and are forgotten. An earlier state of a path, such as a bucket restored from a snapshot, has a
forgotten token, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.claim import UNCLAIMED, Claim, named, read_claim, write_claim
from pulsar_on_spark.storage.health import APART, Hold
from pulsar_on_spark.storage.loss import unreachable
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

_ATTEMPTS: Final = 10
"""Maximum number of attempts, while other passes over the root replace the claim, too."""
MAX_TOKENS: Final = 8
"""Maximum number of a path's tokens. It is reached only if as many passes could not replace the claim after the commit;
of their tokens, the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Unheld:
    """A cold path that the root must not change now: another copy's, or not known; and a sentence with the reason."""

    hold: Hold
    reason: str


def is_ours(found: Claim, tokens: Sequence[str], root: str) -> bool:
    """Return True if a claim is that of a root with these tokens and this name; a claim without a root is anybody's."""
    return found.token in tokens and found.root in ("", root)


def known_tokens(record: PathRecord) -> tuple[str, ...]:
    """Return the tokens that the path's claim may have, the oldest first."""
    return record.claims or (UNCLAIMED,)


def tokens_with(known: Sequence[str], found: str, new: str) -> tuple[str, ...]:
    """Return the tokens after a new one is added: the one that was found on the path, and all later ones."""
    later = [*known[known.index(found) + 1 :], new]
    return (found, *later[-MAX_TOKENS + 1 :])


def unheld_paths(root: RootHandle, view: View, path_ids: Iterable[PathId]) -> dict[PathId, Unheld]:
    """Return those of the paths that are cold, and that the root must neither change nor judge now.

    They are the paths that another copy of the root has claimed, and those whose claim cannot be read.

    Raises:
        MetadataError: the metadata cannot be read.
    """
    found = {path.path_id: _unheld(root, path) for path in _apart(root, view, path_ids)}
    return {path_id: unheld for path_id, unheld in found.items() if unheld is not None}


def require_held(root: RootHandle, view: View, file: FileRecord) -> None:
    """Check that the root may judge all copies of a file: a path in an earlier state lacks files that may be good.

    Raises:
        CopiesUnreachableError: a copy is on a cold path that the root must not judge now.
        MetadataError: the metadata cannot be read.
    """
    unheld = unheld_paths(root, view, [PathId(path_id) for path_id in file.copies])
    if unheld:
        raise unreachable(f"File {file.file_id}", " ".join(each.reason for each in unheld.values()))


def claim(root: RootHandle, path_ids: Iterable[PathId]) -> dict[PathId, str]:
    """Claim those of the paths that are cold, before they are changed.

    Returns:
        The paths that must not be changed, each with the reason: another copy of the root has claimed the path, or the
        path cannot be reached.

    Raises:
        MetadataError: the metadata cannot be read or written.
    """
    refused: dict[PathId, str] = {}
    for path in _apart(root, root.store.view(), path_ids):
        try:
            if reason := try_claim(root, path):
                refused[path.path_id] = reason
        except StoragePathError as error:
            refused[path.path_id] = str(error)
    return refused


def take_over(root: RootHandle, path: StoragePath) -> None:
    """Claim a cold path even if its claim is another root's, because an operator gives it to this root.

    Raises:
        StoragePathError: the path cannot be reached, or other processes claim it all the time.
        MetadataError: the metadata cannot be read or written.
    """
    try_claim(root, path, by_force=True)


def try_claim(root: RootHandle, path: StoragePath, *, by_force: bool = False) -> str:
    """Replace a cold path's claim by a new one of this root.

    Returns:
        The reason for a refusal, because the claim is another root's; "" if the path is claimed now.

    Raises:
        StoragePathError: the path cannot be reached, or other processes claim it all the time.
        MetadataError: the metadata cannot be read or written.
    """
    own = named(root.place)
    for _ in range(_ATTEMPTS):
        found = read_claim(path)
        token = secrets.token_hex(16)
        if _is_announced(root, path.path_id, found, token, own, by_force=by_force):
            if write_claim(path, token, own, found):
                return ""
        elif read_claim(path) == found:
            return _refusal(path, found, own)
    raise _busy(path)


def _apart(root: RootHandle, view: View, path_ids: Iterable[PathId]) -> list[StoragePath]:
    paths = root.storage_paths(view)
    apart = {PathId(record.path_id) for record in view.all(PathRecord) if record.role in APART}
    return [paths[path_id] for path_id in sorted(apart.intersection(path_ids, paths))]


def _is_announced(root: RootHandle, path_id: PathId, found: Claim, token: str, own: str, *, by_force: bool) -> bool:
    """Commit that a token may be on the path; return False if the claim that was found there is another root's."""
    is_granted = False

    def decide(view: View) -> Change | None:
        nonlocal is_granted
        record = view.get(PathRecord, str(path_id))
        if record is None:
            return None
        known = known_tokens(record)
        is_granted = by_force or is_ours(found, known, own)
        if not is_granted or token in known:
            return None
        tokens = tokens_with(known, found.token, token) if found.token in known else (found.token, token)
        return Change(puts=[record.model_copy(update={"claims": tokens})], keys={keys.path(path_id): None})

    root.store.commit(decide)
    return is_granted


def _unheld(root: RootHandle, path: StoragePath) -> Unheld | None:
    """Look whose a path's claim is, even when a pass replaces it meanwhile; None if it is this root's."""
    try:
        own = named(root.place)
        for _ in range(_ATTEMPTS):
            found = read_claim(path)
            record = root.store.view().get(PathRecord, str(path.path_id))
            if record is None or is_ours(found, known_tokens(record), own):
                return None
            if read_claim(path) == found:
                return Unheld(Hold.FOREIGN, _refusal(path, found, own))
        raise _busy(path)
    except StoragePathError as error:
        return Unheld(Hold.UNKNOWN, str(error))


def _busy(path: StoragePath) -> StoragePathError:
    return StoragePathError(f"{path} was claimed by other processes in each of {_ATTEMPTS} attempts: try again.")


def _refusal(path: StoragePath, found: Claim, own: str) -> str:
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
