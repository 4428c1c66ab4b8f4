"""The contract of an object store: a flat space of objects that are written as a whole and read in ranges.

Every implementation passes `pulsar_on_spark.testing.object_store_contract`. The store must be linearizable for each
object and for listings, as Amazon S3, Google Cloud Storage and Azure Blob Storage are: one bucket in one region,
without caches between it and its clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Version(NamedTuple):
    """A version of an object, for `ObjectStore.replace`; different after each write.

    Attributes:
        etag: The store's entity tag; None if the store has none.
        generation: The store's own version number; None if it has none beside the tag.
    """

    etag: str | None
    generation: str | None = None


class Fetched(NamedTuple):
    """An object's content, and the object's version with this content."""

    content: bytes
    version: Version


class Created(NamedTuple):
    """The answer that the caller's object exists and is durable; it has the object's version."""

    version: Version


class Exists(NamedTuple):
    """The answer that another writer's object has this key; it has the object's content and version."""

    content: bytes
    version: Version


class Listed(NamedTuple):
    """An object in a listing.

    Attributes:
        key: Its key.
        size: Its size in bytes.
        version: Its version.
        written_s: The time of its last write by the store's clock, in seconds since 1970. It may make the object a
            candidate for deletion, but must never decide a deletion.
    """

    key: str
    size: int
    version: Version
    written_s: float


class ObjectStore(Protocol):
    """An object store, or a prefix of one.

    Keys are relative to it: names joined by `/`, without a leading slash. If `a/b` is a key, `a` must not be one,
    because gateways in front of file systems cannot store both.

    Methods are thread-safe. Each raises `ObjectsUnreachableError` if it has no certain answer within its time limit.
    Its write may then have been carried out, or may be carried out later.
    """

    def create(self, key: str, content: bytes) -> Created | Exists:
        """Write an object that does not exist yet.

        Args:
            key: The object's key. It must never be used for other content, not even after a deletion, because a late
                request of a writer that has given up could bring its object back.
            content: Up to 32 MiB, different from every other writer's content, for example by a random token. A writer
                recognises its own object by the content after a lost reply.

        Returns:
            `Created` if the object has this content; `Exists` if it has another writer's content.
        """

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        """Overwrite an object if it still has this version.

        Args:
            key: The object's key.
            content: The new content, different from all earlier ones of this key.
            version: The version that the caller has read.

        Returns:
            The new version; None if the object has another version now, or is deleted.
        """

    def fetch(self, key: str) -> Fetched | None:
        """Read a whole object.

        Returns:
            The content and its version; None if there is no such object. A store that has lost its bucket answers the
            same, so base no decision on an absence before `confirm_absent`.
        """

    def fetch_range(self, key: str, start: int, end: int) -> bytes | memoryview | None:
        """Return bytes [start, end), or fewer at the object's end; None if there is no such object.

        A view is of memory that only its reader has, so that a large range is not copied.
        """

    def confirm_absent(self, key: str) -> bool:
        """Check that an object is absent, and that the store is the right one, by its identity object.

        Returns:
            True if the object is absent from the right store; False if the object exists.
        """

    def list_after(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """Iterate over the objects whose keys begin with `prefix` and come after `after`, in the order of UTF-8 bytes.

        Args:
            prefix: Whole names joined by `/`, such as `metadata/main/_delta_log`, or "" for all objects.
            after: A key, which need not exist.
        """

    def head(self, key: str) -> Listed | None:
        """Return an object without its content, as a listing has it; None if there is none (see `fetch`)."""

    def upload(self, key: str) -> Upload:
        """Return a new upload of an object of any size, which exists only when it is complete.

        Args:
            key: The object's key, which no other writer uses.
        """

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""


class Upload(Protocol):
    """An object that is being written as a stream; not thread-safe. Methods raise `ObjectsUnreachableError`."""

    def write(self, content: bytes) -> None:
        """Append bytes; block while too many bytes are in flight."""

    def finish(self) -> None:
        """Complete the object, which is durable on return. After an error the object may exist, or may appear later."""

    def abandon(self) -> None:
        """End the upload without an object. The store's rule for incomplete uploads deletes the parts it has."""
