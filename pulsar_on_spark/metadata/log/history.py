"""The files and keys of a table at each version that its log still covers. Nothing is written.

A log keeps at least 512 entries, and a checkpoint before them. The data files of all versions from that checkpoint on
exist, too, because they are deleted only after the entries that name them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pulsar_on_spark.metadata.log.chain import DamagedEntryError, follow
from pulsar_on_spark.metadata.log.checkpoints import Listing, Snapshot, checkpoint_key, list_log, read_checkpoint
from pulsar_on_spark.metadata.log.entry import BEFORE_FIRST, Entry, entry_key
from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.metadata.log.opening import EMPTY, damaged, entries_ahead, entry_of
from pulsar_on_spark.metadata.log.requests import run


@dataclass(frozen=True, slots=True)
class History:
    """A table's versions from the oldest that can be read to the newest.

    Attributes:
        base: The oldest version.
        times_ms: The time of each version on its writer's clock, in milliseconds since 1970. A time that is before the
            previous version's is replaced by that one.
        entries: The entries after the oldest version.
    """

    base: Snapshot
    times_ms: Sequence[int]
    entries: Sequence[Entry]

    @property
    def newest(self) -> int:
        """The newest version."""
        return self.base.version + len(self.entries)

    def time_ms(self, version: int) -> int:
        """Return the time of a version, in milliseconds since 1970."""
        return self.times_ms[version - self.base.version]

    def version_at(self, time_ms: int) -> int:
        """Return the newest version at or before a time in milliseconds since 1970.

        If all versions are later, return the oldest version minus 1.
        """
        return self.base.version + bisect_right(self.times_ms, time_ms) - 1

    def snapshot(self, version: int) -> Snapshot:
        """Return the files and keys of a version; `removed_ms` is empty, and `head` is the oldest version's."""
        files, keys = dict(self.base.files), dict(self.base.keys)
        for entry in self.entries[: version - self.base.version]:
            files.update((file.name, file) for file in entry.added)
            for name in entry.removed:
                files.pop(name, None)
            keys.update(entry.keys)
        return Snapshot(version, files, keys, {}, self.base.head)

    def behind(self, version: int) -> Sequence[Entry]:
        """Return the entries after a version."""
        return self.entries[version - self.base.version :]


def read_history(store: LogStore) -> History:
    """Read a log from its oldest version on.

    Raises:
        OvertakenError: the log was cleaned up during the call: read it again.
        ForeignEntryError: another program has written to the log.
        CorruptMetadataError: an entry is damaged or missing, or all checkpoints are damaged.
        ObjectsUnreachableError: the log cannot be read now.
    """
    try:
        listing = list_log(store.objects)
        if listing.entries[:1] == (0,):
            ahead = entries_ahead(store, listing, BEFORE_FIRST.version)
            first, *entries = run(follow(BEFORE_FIRST), store, ahead.fetch)
            base = Snapshot(0, {file.name: file for file in first.added}, first.keys, {}, first.head)
        else:
            base = _oldest_checkpoint(store, listing)
            first = entry_of(store, base.version)
            ahead = entries_ahead(store, listing, base.version)
            entries = run(follow(first.tip), store, ahead.fetch)
    except DamagedEntryError as error:
        raise damaged(store, entry_key(error.version), "is not what was written") from error
    return History(base, tuple(accumulate((entry.written_ms for entry in (first, *entries)), max)), tuple(entries))


def _oldest_checkpoint(store: LogStore, listing: Listing) -> Snapshot:
    for version in listing.checkpoints:
        snapshot = read_checkpoint(store.objects, version)
        if snapshot is not None:
            return snapshot
    raise damaged(store, checkpoint_key(max(listing.checkpoints, default=EMPTY.version)), "is not what was written")
