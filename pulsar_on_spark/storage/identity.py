"""The identity of a storage path or root: a small file or object in its directory or below its URL, which names it.

It corresponds to a bookie's cookie. An empty or foreign disk mounted at a path's directory, or a bucket of another
cluster, must not make files look deleted.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from pulsar_on_spark.model.errors import NoAccessError, StoragePathError, WrongPathError
from pulsar_on_spark.model.ids import PathId

IDENTITY_NAME: Final = "pulsarpy-path.json"
"""The name of the file in a path's directory, and the key of the object below a path's or a root's URL."""
_FORMAT: Final = 1


class HiddenPathError(WrongPathError):
    """The path's identity is hidden, because it is being retired."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of an identity.

    Attributes:
        cluster_id: The id of the root's cluster.
        path_id: The storage path in the root; None for the root itself.
    """

    cluster_id: str
    path_id: PathId | None

    def encode(self, hidden: str = "") -> bytes:
        """Return the identity in its stored form, JSON.

        Args:
            hidden: A token, different each time, that hides the identity of a path that is being retired, so that no
                process uses the path; empty for a visible identity.
        """
        mark = {"hidden": hidden} if hidden else {}
        return json.dumps({"format_version": _FORMAT, **asdict(self), **mark}).encode()

    @classmethod
    def decode(cls, content: bytes, name: str) -> Identity:
        """Return the identity that `encode` stored; `name` names the path or root in errors.

        Raises:
            HiddenPathError: the path is being retired.
            StoragePathError: the content is damaged, or from a newer version.
        """
        try:
            fields = json.loads(content)
            path_id = None if fields["path_id"] is None else PathId(int(fields["path_id"]))
            found, version = cls(fields["cluster_id"], path_id), int(fields["format_version"])
            is_hidden = bool(fields.get("hidden"))
        except (ValueError, KeyError, TypeError) as error:
            raise unreadable(name, error) from error
        if version > _FORMAT:
            raise StoragePathError(
                f"{name} has format version {version}, and this program reads versions up to {_FORMAT}: upgrade "
                "pulsar_on_spark."
            )
        if is_hidden:
            raise being_retired(name, path_id)
        return found

    def require(self, found: Identity, name: str, remedy: str) -> None:
        """Check that an identity that was read equals this identity.

        Args:
            found: The identity that was read.
            name: The name of the path or root in errors.
            remedy: The operator's remedy if the identities differ, for the error.

        Raises:
            WrongPathError: the identities differ.
        """
        if found != self:
            raise WrongPathError(
                f"{name} is path {found.path_id} of cluster {found.cluster_id}, not path {self.path_id} of cluster "
                f"{self.cluster_id}: {remedy}."
            )


def being_retired(name: str, path_id: PathId | None) -> HiddenPathError:
    """Return the error for a hidden identity, which a retirement leaves behind if its process is killed.

    Args:
        name: The name of the path.
        path_id: The path's id; never None, as the identity of a root is not hidden.
    """
    return HiddenPathError(
        f"{name} is being retired: if that was interrupted, run `pulsarpy storage retire {path_id}` to finish it, or "
        f"`pulsarpy storage resume {path_id}` to undo it."
    )


def unreadable(name: str, error: Exception) -> StoragePathError:
    """Return the error for an identity that cannot be read; `name` names the path or root."""
    return (NoAccessError if isinstance(error, PermissionError) else StoragePathError)(
        f"{name}: {IDENTITY_NAME} cannot be read ({error}): repair its disk, or mark the path as lost with "
        "`pulsarpy storage lost`."
    )
