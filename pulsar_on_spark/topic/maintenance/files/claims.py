"""Claims: of several copies of a root that share a cold path, only one changes it; the others only read from it.

The same is true of history paths: in this module, a cold path is any path with a role of `APART`.

A copy of a root's folder, made by `cp -a` or by a snapshot of its disk, names the same cold paths as the root. If both
moved and deleted files there, each would delete as garbage the files that only the other copy's metadata name. So
before a commit or a collection changes a cold path, it replaces the path's claim:

    read the claim  ->  is it ours?  ->  commit: a new token is ours, too  ->  replace the claim  ->  commit: only it is
                              │ no
                              └─> another copy of the root has changed the path since we did: change nothing

A claim is ours if the root's metadata name its token, and if it names this root's folder or URL. A copy of the metadata
names the same tokens, so a copy that acts first is recognized by its folder or URL, and a later change of either one by
the token. A root that was moved is like a copy: an operator decides which one is to keep the path.

Tokens are random. A token is in the root's metadata before it is on the path, so a kill leaves a claim that is
recognized. The claim is replaced only if it is still as it was read. So tokens that were added before the current
claim's token can never get to the path later, and the root forgets them. An earlier state of a path, such as a bucket
restored from a snapshot, has a forgotten token, too, if it can lack a file that the metadata name: a file is written
before the claim is replaced for the commit that names the file.
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
"""Maximum number of a path's tokens. It is reached only if almost as many passes failed to replace the claim."""


def tokens_with(known: Sequence[str], found: str, new: str) -> tuple[str, ...]:
    """Return the tokens that a path's claim may have once a pass writes it: `found`, all later known tokens, and `new`.

    The pass writes the last of them. If the others are `MAX_TOKENS` already, `new` is left out: none of the others may
    be forgotten, because a pass that failed may still write it late.
    """
    later = known[known.index(found) + 1 :] if found in known else ()
    tokens = (found, *later)
    return tokens if len(tokens) == MAX_TOKENS else (*tokens, new)


def claim(root: RootHandle, path_ids: Iterable[PathId]) -> dict[PathId, str]:
    """Claim the cold paths among `path_ids` for this root, before they are changed.

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
    """Claim a cold path for this root even if its claim is another root's, because an operator assigns it to this root.

    Raises:
        StoragePathError: the path cannot be reached, or other processes claim it all the time.
        MetadataError: the metadata cannot be read or written.
    """
    try_claim(root, path, by_force=True)


def try_claim(root: RootHandle, path: StoragePath, *, by_force: bool = False) -> str:
    """Replace a cold path's claim by a new claim of this root; with `by_force`, even if the claim is another root's.

    Returns:
        The reason for a refusal, because the claim is another root's; "" if the path is claimed now.

    Raises:
        StoragePathError: the path cannot be reached, or other processes claim it all the time.
        MetadataError: the metadata cannot be read or written.
    """
    own = named(root.place)
    for _ in range(ATTEMPTS):
        found = read_claim(path)
        if token := _announced(root, path.path_id, found, own, by_force=by_force):
            if write_claim(path, token, own, found):
                _forget_before(root, path.path_id, token)
                return ""
        elif read_claim(path) == found:
            return refusal(path, found, own)
    raise busy(path)


def _announced(root: RootHandle, path_id: PathId, found: Claim, own: str, *, by_force: bool) -> str:
    """Commit that the path's claim may get a new token, and return the token.

    The result is "" if the claim `found` is another root's.
    """
    new, token = secrets.token_hex(16), ""

    def decide(view: View) -> Change | None:
        nonlocal token
        record = view.get(PathRecord, str(path_id))
        known = () if record is None else known_tokens(record)
        if record is None or not (by_force or is_ours(found, known, own)):
            token = ""
            return None
        tokens = known if new in known else tokens_with(known, found.token, new)
        token = new if new in tokens else tokens[-1]
        return _with_tokens(record, tokens)

    root.store.commit(decide)
    return token


def _forget_before(root: RootHandle, path_id: PathId, token: str) -> None:
    """Remove the tokens older than the written one from the path's record.

    From now on, only an earlier state of the path can have them.
    """

    def decide(view: View) -> Change | None:
        record = view.get(PathRecord, str(path_id))
        if record is None or token not in record.claims:
            return None
        return _with_tokens(record, record.claims[record.claims.index(token) :])

    root.store.commit(decide)


def _with_tokens(record: PathRecord, tokens: tuple[str, ...]) -> Change | None:
    """Return the change that stores the tokens of a path's claim; None if the record has them already."""
    if tokens == record.claims:
        return None
    return Change(puts=[record.model_copy(update={"claims": tokens})], keys={keys.path(record.path_id): None})
