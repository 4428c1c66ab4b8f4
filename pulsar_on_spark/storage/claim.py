"""The claim on a storage path: a small object that names the one root that may change the path, and a random token.

A copy of a root has the root's identity, and names the same storage paths outside of it. The identity of a path does
not tell the two roots apart, but the claim does: see `topic.maintenance.files.claims`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.storage.bounded_path import in_time
from pulsar_on_spark.storage.objects.contract import Created, Version
from pulsar_on_spark.storage.root_place import RootPlace, objects_at
from pulsar_on_spark.storage.segment_objects import translated
from pulsar_on_spark.storage.storage_path import StoragePath

CLAIM_NAME: Final = "pulsarpy-claim.json"
"""The name of the file in a path's directory, and the key of the object below a path's URL."""
UNCLAIMED: Final = ""
"""The token of a path without a claim."""
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim on a storage path.

    Attributes:
        token: The token that the path's root wrote; `UNCLAIMED` for a path without a claim.
        root: The name of the root that wrote the claim, as `named` returns it; "" for a claim of an older version,
            which names no root.
        version: The version of the object that has the claim; None for a path without a claim.
    """

    token: str
    root: str
    version: Version | None


def named(root: RootPlace) -> str:
    """Return the text that names a root in a claim: its URL, or its folder's resolved path and inode number.

    A copy of a folder has another inode number. On a copy of the whole disk, the folder has the same number but another
    path, unless the disk is mounted at the same path of another host.

    Raises:
        StoragePathError: the root's folder cannot be examined.
    """
    if not isinstance(root, Path):
        return str(root)
    try:
        return f"{os.path.realpath(root)} (inode {os.stat(root).st_ino})"
    except OSError as error:
        raise StoragePathError(
            f"The folder of the root {root} cannot be examined ({error}): mount its disk."
        ) from error


def read_claim(path: StoragePath) -> Claim:
    """Return the claim on a storage path; its token is `UNCLAIMED` if the path has no claim.

    Raises:
        StoragePathError: the path cannot be reached, its directory or URL is another path, or its claim cannot be read.
    """
    path.check()
    with translated():
        fetched = in_time(path, lambda: objects_at(path.place).fetch(CLAIM_NAME))
    if fetched is None:
        path.check()  # an absence counts only if the directory or URL is still the path
        return Claim(UNCLAIMED, "", None)
    try:
        fields = json.loads(fetched.content)
        token, root, version = str(fields["token"]), str(fields.get("root", "")), int(fields["format_version"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoragePathError(
            f"The claim {CLAIM_NAME} of {path} cannot be read ({error}): restore or delete it."
        ) from error
    if version > _FORMAT:
        raise StoragePathError(
            f"The claim {CLAIM_NAME} of {path} has format version {version}, and this program reads versions up to "
            f"{_FORMAT}: upgrade pulsar_on_spark."
        )
    return Claim(token, root, fetched.version)


def write_claim(path: StoragePath, token: str, root: str, found: Claim) -> bool:
    """Replace the claim `found`, and return True; return False if the path has another claim by now.

    Args:
        path: The storage path.
        token: The new token, which was never used.
        root: The name of the root that writes the claim, as `named` returns it.
        found: The claim to replace.

    Raises:
        StoragePathError: there was no certain answer: the path has the old or the new claim, or gets the new one later.
    """
    content = json.dumps({"format_version": _FORMAT, "token": token, "root": root}).encode()

    def replace() -> bool:
        objects = objects_at(path.place)
        if found.version is None:
            return isinstance(objects.create(CLAIM_NAME, content), Created)
        return objects.replace(CLAIM_NAME, content, found.version) is not None

    with translated():
        return in_time(path, replace)
