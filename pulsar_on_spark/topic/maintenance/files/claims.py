"""Claims: of several copies of a root that share a cold path, only one changes it; the others only read from it.

A copy of a root's folder, made by `cp -a` or by a snapshot of its disk, names the same cold paths as the root. If both
moved and deleted files there, each would delete as garbage what only the other one's metadata name. So before a commit
or a collection changes a cold path, it replaces the path's claim:

    read the claim  ->  is its token one of ours?  ->  one commit: a new token is ours, too  ->  replace the claim read
                              │ no
                              └─> another copy of the root has changed the path since we did: change nothing

Tokens are random. A token is in the root's metadata before it is on the path, so a kill leaves a claim that is known.
The claim is replaced only as it was read. So tokens that were added before that of the present claim can never get to
the path later, and are forgotten. An earlier state of a path, such as a bucket restored from a snapshot, has a
forgotten token, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.claim import UNCLAIMED, read_claim, write_claim
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

_ATTEMPTS: Final = 10
"""Maximum number of attempts, while other passes over the root replace the claim, too."""
MAX_TOKENS: Final = 8
"""Maximum number of a path's tokens. It is reached only if as many passes could not replace the claim after the commit;
of their tokens, the oldest are forgotten."""


def known_tokens(record: PathRecord) -> tuple[str, ...]:
    """Return the tokens that the path's claim may have, the oldest first."""
    return record.claims or (UNCLAIMED,)


def tokens_with(known: Sequence[str], found: str, new: str) -> tuple[str, ...]:
    """Return the tokens after a new one is added: the one that was found on the path, and all later ones."""
    later = [*known[known.index(found) + 1 :], new]
    return (found, *later[-MAX_TOKENS + 1 :])


def foreign_paths(root: RootHandle, view: View, path_ids: Iterable[PathId]) -> dict[PathId, str]:
    """Return those of the paths that are cold, and that another copy of the root has changed since this root did.

    Returns:
        The paths, each with a sentence on it, without paths that cannot be reached now.

    Raises:
        MetadataError: the metadata cannot be read.
    """
    found: dict[PathId, str] = {}
    for path in _cold(root, view, path_ids):
        with suppress(StoragePathError):
            if _is_foreign(root, path):
                found[path.path_id] = _refusal(path)
    return found


def claim(root: RootHandle, path_ids: Iterable[PathId]) -> dict[PathId, str]:
    """Claim those of the paths that are cold, before they are changed.

    Returns:
        The paths that must not be changed, each with the reason: another copy of the root has changed the path, or the
        path cannot be reached.

    Raises:
        MetadataError: the metadata cannot be read or written.
    """
    refused: dict[PathId, str] = {}
    for path in _cold(root, root.store.view(), path_ids):
        try:
            if not _replaced(root, path):
                refused[path.path_id] = _refusal(path)
        except StoragePathError as error:
            refused[path.path_id] = str(error)
    return refused


def take_over(root: RootHandle, path: StoragePath) -> None:
    """Claim a cold path whoever has changed it, because an operator says that it is this root's.

    Raises:
        StoragePathError: the path cannot be reached, or other processes claim it all the time.
        MetadataError: the metadata cannot be read or written.
    """
    _replaced(root, path, by_force=True)


def _cold(root: RootHandle, view: View, path_ids: Iterable[PathId]) -> list[StoragePath]:
    paths = root.storage_paths(view)
    cold = {PathId(record.path_id) for record in view.all(PathRecord) if record.role == "cold"}
    return [paths[path_id] for path_id in sorted(cold.intersection(path_ids, paths))]


def _replaced(root: RootHandle, path: StoragePath, *, by_force: bool = False) -> bool:
    """Replace a path's claim by a new one of this root; return False if the claim is another root's.

    Raises:
        StoragePathError: the path cannot be reached, or other processes claim it all the time.
    """
    for _ in range(_ATTEMPTS):
        found = read_claim(path)
        token = secrets.token_hex(16)
        if _is_announced(root, path.path_id, found.token, token, by_force=by_force):
            if write_claim(path, token, found):
                return True
        elif read_claim(path) == found:
            return False
    raise StoragePathError(f"{path} was claimed by other processes in each of {_ATTEMPTS} attempts: try again.")


def _is_announced(root: RootHandle, path_id: PathId, found: str, token: str, *, by_force: bool) -> bool:
    """Commit that a token may be on the path; return False if the token that was found there is not known."""
    is_ours = False

    def decide(view: View) -> Change | None:
        nonlocal is_ours
        record = view.get(PathRecord, str(path_id))
        if record is None:
            return None
        known = known_tokens(record)
        is_ours = by_force or found in known
        if not is_ours or token in known:
            return None
        tokens = tokens_with(known, found, token) if found in known else (found, token)
        return Change(puts=[record.model_copy(update={"claims": tokens})], keys={keys.path(path_id): None})

    root.store.commit(decide)
    return is_ours


def _is_foreign(root: RootHandle, path: StoragePath) -> bool:
    """Return True if the token on a path is not one of the root's, even when a pass has replaced it meanwhile."""
    for _ in range(_ATTEMPTS):
        found = read_claim(path)
        record = root.store.view().get(PathRecord, str(path.path_id))
        if record is None or found.token in known_tokens(record):
            return False
        if read_claim(path) == found:
            return True
    return False


def _refusal(path: StoragePath) -> str:
    return (
        f"Storage path {path.path_id} ({path.place}) was changed by another copy of this root, or is in an earlier "
        "state than this root left it in, so this root only reads from it: run `pulsarpy storage resume "
        f"{path.path_id}` in the one root that is to keep it, and give each other root a cold path of its own."
    )
