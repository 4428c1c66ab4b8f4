"""Deletion of objects that no reader of a log can still need: old entries and checkpoints, and unnamed data files.

Entries are deleted from the oldest one on, so that a crash leaves no gap. Safety depends on no clock: `chain` detects a
commit whose request comes too late. The data file of such a commit is not needed once the entry after the version on
which the commit was decided is deleted. Minimum ages only give other programs time to read older versions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from pulsar_on_spark.metadata.log.checkpoints import checkpoint_key, checksum_key, list_log, read_checkpoint
from pulsar_on_spark.metadata.log.data_files import read_version_of
from pulsar_on_spark.metadata.log.entry import entry_key
from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.metadata.log.opening import legible_entries, open_log

KEEP_ENTRIES: Final = 512
"""Minimum number of log entries that are kept. It limits the time to open a log, which lists all entries (1 ms for
1,000). A reader that is further behind opens the log again."""
KEEP_S: Final = 10.0
"""Minimum age in seconds at which log entries of metadata tables are deleted. A reader that refreshes less often may
have to open the log again. Each commit lists the log, so more entries would slow commits down."""
RETAIN_S: Final = 3600.0
"""Minimum seconds for which replaced data files are kept, for programs that read an older version of the table."""


def clean_log(store: LogStore, version: int, keep_s: float) -> None:
    """Delete the log entries and checkpoints before an old checkpoint. The caller holds `LogStore.housekeeping`.

    The newest intact checkpoint that is `keep_s` seconds old and has `KEEP_ENTRIES` entries after it is kept with every
    later entry, so that damage to a newer checkpoint does no harm.

    Args:
        store: The log.
        version: The newest version.
        keep_s: Minimum age of the checkpoint, in seconds.
    """
    objects = store.objects
    listing = list_log(objects)
    latest_ms = (time.time() - keep_s) * 1000
    behind = [each for each in listing.checkpoints if each <= version - KEEP_ENTRIES]
    for kept in reversed(behind):
        entry = next(legible_entries(store, (kept,)), None)
        if entry is not None and entry.written_ms <= latest_ms and read_checkpoint(objects, kept) is not None:
            break
    else:
        return
    for each in takewhile(lambda each: each < kept, listing.checkpoints):  # before the entries, which they need
        objects.delete(checksum_key(each))
        objects.delete(checkpoint_key(each))
    for each in takewhile(lambda each: each < kept, listing.entries):
        objects.delete(entry_key(each))


def clean_data(store: LogStore) -> int:
    """Delete the data files that neither the newest version nor any entry of the log names; return their number.

    Files that were removed less than `RETAIN_S` seconds ago are kept.

    Raises:
        OvertakenError: another process cleaned the log up during the call: try again later.
    """
    listing = list_log(store.objects)
    # Read after the listing: the entry of an active file may have been cleaned up before it.
    opened = open_log(store)
    earliest_ms = (time.time() - RETAIN_S) * 1000
    named = opened.active() | {name for name, ms in opened.snapshot.removed_ms.items() if ms >= earliest_ms}
    for entry in legible_entries(store, listing.entries):
        named.update(file.name for file in entry.added)
        named.update(entry.removed)
    doomed = [
        name for name in _data_files(store) if name not in named and read_version_of(name) + 1 < listing.entries[0]
    ]
    for name in doomed:
        store.objects.delete(name)
    return len(doomed)


def _data_files(store: LogStore) -> Iterator[str]:
    keys = (listed.key for listed in store.objects.list_after("", "part-"))
    return takewhile(lambda key: key.startswith("part-"), keys)
