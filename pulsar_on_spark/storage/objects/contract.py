"""The contract of an object store: a flat space of objects that are written as a whole and read in ranges.

Every implementation passes `pulsar_on_spark.testing.object_store_contract`. The store behind it must be linearizable
for each object and for listings, as Amazon S3, Google Cloud Storage and Azure Blob Storage are: one bucket in one
region, without caches between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Version(NamedTuple):
    """The mark of one state of an object, for `ObjectStore.replace`; different after each write.

    Attributes:
        etag: The store's entity tag.
        generation: The store's version beside it, where it has one.
    """

    etag: str | None
    generation: str | None = None


class Fetched(NamedTuple):
    """An object's content, and the version that it belongs to."""

    content: bytes
    version: Version


class Created(NamedTuple):
    """The object is the caller's, and durable."""

    version: Version


class Exists(NamedTuple):
    """Another writer's object has this key."""

    content: bytes
    version: Version


class Listed(NamedTuple):
    """An object in a listing.

    Attributes:
        key: Its key.
        size: Its size in bytes.
        version: Its version.
        written_s: The time of its last write by the store's clock, in seconds since 1970. It may nominate an object for
            a deletion, never decide one.
    """

    key: str
    size: int
    version: Version
    written_s: float


class ObjectStore(Protocol):
    """An object store, or a prefix of one.

    Keys are relative to it: names joined by `/`, without a leading one. Where `a/b` is a key, `a` is none, because
    gateways in front of file systems cannot store both.

    Methods are thread-safe. Each raises `ObjectsUnreachableError` if it has no certain answer within its patience; a
    write may then have been carried out, or may still be.
    """

    def create(self, key: str, content: bytes) -> Created | Exists:
        """Write an object that does not exist yet.

        Args:
            key: The object's key. It is used for no other content later, also after a deletion: a late request of a
                writer that has given up could bring its object back.
            content: Up to 32 MiB, different from every other writer's content, for example by a random token: by its
                content a writer recognises its own object after a lost reply.
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
            None if there is none. A store that lost its bucket says so, too: decide something on an absence only after
            `confirm_absent`.
        """

    def fetch_range(self, key: str, start: int, end: int) -> bytes | None:
        """Read the bytes from `start` to before `end`, fewer at the object's end; None without the object."""

    def confirm_absent(self, key: str) -> bool:
        """Check that an object is absent from a store that is there, which its identity object shows.

        Returns:
            False if the object exists.
        """

    def list_after(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """Iterate over the objects whose keys begin with `prefix` and come behind `after`, in the order of UTF-8 bytes.

        Args:
            prefix: Whole names, such as `metadata/main/_delta_log`, or "" for all.
            after: A key; it need not exist.
        """

    def head(self, key: str) -> Listed | None:
        """Look at an object without its content; None if there is none (see `fetch`)."""

    def upload(self, key: str) -> Upload:
        """Begin an object of any size, which exists once it is complete.

        Args:
            key: The object's key, which no other writer uses.
        """

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""


class Upload(Protocol):
    """An object that is being written as a stream; not thread-safe. Methods raise `ObjectsUnreachableError`."""

    def write(self, content: bytes) -> None:
        """Append bytes; blocks while too many are on their way."""

    def finish(self) -> None:
        """Complete the object: it is durable on return. After an error it may exist, or may exist later."""

    def abandon(self) -> None:
        """End without an object. What the store keeps of it, its rule for incomplete uploads deletes."""
