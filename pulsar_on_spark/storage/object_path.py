"""A storage path on an object store. A copy appears under its name when it is complete, and is never changed.

A proxy, a wrong endpoint or an emptied bucket must not make copies look deleted. So after the store answered "not
found" for a copy, the path's identity object is read: the copy counts as absent only if the identity is right.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pulsar_on_spark.model.errors import InvalidArgumentError, NoAccessError, WrongPathError
from pulsar_on_spark.model.ids import PathId, SegmentName
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.identity import IDENTITY_NAME, HiddenPathError, Identity
from pulsar_on_spark.storage.objects.contract import Exists, ObjectStore
from pulsar_on_spark.storage.objects.probe import PROBE_PREFIX
from pulsar_on_spark.storage.root_place import RootPlace, objects_at
from pulsar_on_spark.storage.segment_names import SEGMENTS, parse_file_name, segment_key, sidecar_key
from pulsar_on_spark.storage.segment_objects import ObjectSink, ObjectSource, translated
from pulsar_on_spark.storage.storage_path import StoredFile

_MAX_KNOWN: Final = 1_000
_known: set[tuple[int, RootPlace, str, PathId]] = set()
"""The paths whose identity this process has read, each with the process id: a forked process reads it again."""


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """A storage path below a URL; `StoragePath` describes the methods in full.

    Attributes:
        path_id: The path's id in the root.
        place: The path's URL and profile.
        cluster_id: The id of the root's cluster.
        label: The label of the path's rack; "" without a label.
        weight: The path's share of new files, which is the same for all, as an object store is never full.
        is_given_up: True if an operator declared the path lost.
    """

    path_id: PathId
    place: RootPlace
    cluster_id: str
    label: str = ""
    weight: int = field(default=1, compare=False)
    is_given_up: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"storage path {self.path_id} ({self.place})"

    @property
    def is_elsewhere(self) -> bool:
        """False: an object store belongs to no host."""
        return False

    def create(self, files: FileOps = OS_FILES, mode: int | None = None) -> None:
        """Create the identity object, or check that the existing one is this path's; `mode` has no effect."""
        with translated():
            written = self.objects.create(IDENTITY_NAME, self._identity.encode())
        if isinstance(written, Exists):
            self._require(written.content)

    def check(self, files: FileOps = OS_FILES) -> None:
        """Check that the URL has the identity object of this path."""
        with translated():
            fetched = self.objects.fetch(IDENTITY_NAME)
        if fetched is None:
            raise WrongPathError(
                f"{self._name} has no object {IDENTITY_NAME}: check the endpoint and the bucket, or mark the path as "
                "lost with `pulsarpy storage lost`."
            )
        self._require(fetched.content)
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known.add(self._as_known)

    def hide_identity(self) -> bool:
        """Overwrite the identity object with a hidden one, and return True; return False if the URL is not this path.

        The object is not deleted, because a deletion could arrive late.
        """
        return self._write_identity(self._identity.encode(hidden=secrets.token_hex(8)), is_hidden=True)

    def show_identity(self) -> None:
        """Overwrite the identity object with a visible one."""
        self._write_identity(self._identity.encode(), is_hidden=False)

    def _write_identity(self, content: bytes, *, is_hidden: bool) -> bool:
        with translated():
            while True:
                fetched = self.objects.fetch(IDENTITY_NAME)
                if fetched is None:
                    return False
                try:
                    self._require(fetched.content)
                except HiddenPathError:
                    if is_hidden:
                        return True
                except WrongPathError:
                    return False
                _known.discard(self._as_known)
                if self.objects.replace(IDENTITY_NAME, content, fetched.version) is not None:
                    return True

    def measured(self) -> ObjectPath:
        """Return the path unchanged, because an object store is never full."""
        return self

    def space(self) -> None:
        """Check that the path can be reached, and return None, because its space is unlimited."""
        self.check()

    def try_write(self) -> None:
        """Create an object and delete it."""
        key = f"{PROBE_PREFIX}/{secrets.token_hex(16)}"
        with translated():
            self.objects.create(key, key.encode())
            self.objects.delete(key)

    def write_segment(self, name: SegmentName, files: FileOps = OS_FILES, *, stays_cached: bool = True) -> ObjectSink:
        """Return a new upload. The path is checked before and after it, so that no copy ends on a retired path."""
        self.check()
        return ObjectSink(self.objects, segment_key(name), sidecar_key(name), self.check)

    def open_segment(self, name: SegmentName, files: FileOps = OS_FILES) -> ObjectSource:
        """Return the source without a request for the copy; reading its first range shows if it exists."""
        self._check_once()
        key = segment_key(name)
        return ObjectSource(self.objects, key, sidecar_key(name), f"{self.place}/{key}", self.check)

    def has_segment(self, name: SegmentName) -> bool:
        """Return True if the object exists; after "not found", check the path, too."""
        with translated():
            if self.objects.head(segment_key(name)) is not None:
                return True
            self.check()
            return self.objects.head(segment_key(name)) is not None

    def segment_files(self, now_s: float) -> Iterator[StoredFile]:
        """Check the path, and return its segments and sidecars."""
        self.check()
        return self.unchecked_segment_files(now_s)

    def unchecked_segment_files(self, now_s: float) -> Iterator[StoredFile]:
        """Yield the segments and sidecars without checking the path."""
        with translated():
            for listed in self.objects.list_after(SEGMENTS):
                if (parsed := parse_file_name(listed.key.rpartition("/")[2])) is not None:
                    name, is_sidecar = parsed
                    age_s = now_s - listed.written_s
                    yield StoredFile(name, listed.key, age_s, listed.size, is_sidecar, is_tmp=False)

    def delete_segment(self, name: SegmentName, files: FileOps = OS_FILES) -> int:
        """Delete the segment and then its sidecar, and return the number of objects that existed."""
        self.check()
        count = 0
        with translated():
            for key in (segment_key(name), sidecar_key(name)):
                count += self.objects.head(key) is not None
                self.objects.delete(key)
        return count

    def delete_stored(self, stored: StoredFile) -> bool:
        """Delete the object, and return True even if it did not exist."""
        self._check_once()
        with translated():
            self.objects.delete(stored.location)
        return True

    @property
    def objects(self) -> ObjectStore:
        """The object store; keys are relative to the path's URL.

        Raises:
            NoAccessError: this process lacks the path's profile, or the profile is not valid: other paths are well.
        """
        try:
            return objects_at(self.place)
        except InvalidArgumentError as error:
            raise NoAccessError(f"{self._name} cannot be used by this process: {error}") from error

    @property
    def _name(self) -> str:
        return f"Storage path {self.path_id} ({self.place})"

    @property
    def _identity(self) -> Identity:
        return Identity(self.cluster_id, self.path_id)

    @property
    def _as_known(self) -> tuple[int, RootPlace, str, PathId]:
        return os.getpid(), self.place, self.cluster_id, self.path_id

    def _require(self, content: bytes) -> None:
        found = Identity.decode(content, self._name)
        self._identity.require(found, self._name, "check the URL, the endpoint and the bucket")

    def _check_once(self) -> None:
        """Check the path if this process has not done so yet."""
        if self._as_known not in _known:
            self.check()
