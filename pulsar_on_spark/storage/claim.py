"""The claim on a storage path: a small object with the token that the path's root wrote when it last changed the path.

A copy of a root has the root's identity, and names the same storage paths outside of it. The identity of a path does
not tell the two roots apart, the claim does: see `topic.maintenance.files.claims`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.storage.bounded_path import in_time
from pulsar_on_spark.storage.objects.contract import Created, Version
from pulsar_on_spark.storage.root_place import objects_at
from pulsar_on_spark.storage.segment_objects import translated
from pulsar_on_spark.storage.storage_path import StoragePath

CLAIM_NAME: Final = "pulsarpy-claim.json"
"""The name of the file in a path's directory, and the key of the object below a path's URL."""
UNCLAIMED: Final = ""
"""The token of a path without a claim."""
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A path's claim: its token, and the version of the object that has it; None for a path without a claim."""

    token: str
    version: Version | None


def read_claim(path: StoragePath) -> Claim:
    """Read the claim on a path.

    Raises:
        StoragePathError: the path cannot be reached or is another one, or its claim cannot be read.
    """
    path.check()
    with translated():
        fetched = in_time(path, lambda: objects_at(path.place).fetch(CLAIM_NAME))
    if fetched is None:
        path.check()  # an absence counts only if the place is still the path
        return Claim(UNCLAIMED, None)
    try:
        fields = json.loads(fetched.content)
        token, version = str(fields["token"]), int(fields["format_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoragePathError(f"{path}: {CLAIM_NAME} cannot be read ({error}): restore or delete it.") from error
    if version > _FORMAT:
        raise StoragePathError(
            f"{path}: {CLAIM_NAME} has format version {version}, this program knows up to {_FORMAT}: upgrade it."
        )
    return Claim(token, fetched.version)


def write_claim(path: StoragePath, token: str, found: Claim) -> bool:
    """Replace the claim that was found; return False if the path has another one by now.

    Args:
        path: The storage path.
        token: The new token, which was never used.
        found: The claim to replace.

    Raises:
        StoragePathError: there was no certain answer; the path has either claim, or will have the new one.
    """
    content = json.dumps({"format_version": _FORMAT, "token": token}).encode()

    def replace() -> bool:
        objects = objects_at(path.place)
        if found.version is None:
            return isinstance(objects.create(CLAIM_NAME, content), Created)
        return objects.replace(CLAIM_NAME, content, found.version) is not None

    with translated():
        return in_time(path, replace)
