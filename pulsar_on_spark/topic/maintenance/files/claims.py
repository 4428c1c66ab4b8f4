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
from typing import Final

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.claim import Claim, named, read_claim, write_claim
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.holds import ATTEMPTS, busy, claimed_paths, is_ours, known_tokens, refusal
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

MAX_TOKENS: Final = 8
"""Maximum number of a path's tokens. It is reached only if as many passes could not replace the claim after the commit;
of their tokens, the oldest are forgotten."""


def tokens_with(known: Sequence[str], found: str, new: str) -> tuple[str, ...]:
    """Return the tokens after a new one is added: the one that was found on the path, and all later ones."""
    later = [*known[known.index(found) + 1 :], new]
    return (found, *later[-MAX_TOKENS + 1 :])


def claim(root: RootHandle, path_ids: Iterable[PathId]) -> dict[PathId, str]:
    """Claim those of the paths that are cold, before they are changed.

    Returns:
        The paths that must not be changed, each with the reason: another copy of the root has claimed the path, or the
        path cannot be reached.

    Raises:
        MetadataError: the metadata cannot be read or written.
    """
    refused: dict[PathId, str] = {}
    for path in claimed_paths(root, root.store.view(), path_ids):
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
    for _ in range(ATTEMPTS):
        found = read_claim(path)
        token = secrets.token_hex(16)
        if _is_announced(root, path.path_id, found, token, own, by_force=by_force):
            if write_claim(path, token, own, found):
                return ""
        elif read_claim(path) == found:
            return refusal(path, found, own)
    raise busy(path)


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
