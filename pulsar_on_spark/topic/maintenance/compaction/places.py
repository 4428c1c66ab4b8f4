"""Places of messages: numbers that grow along the chain, so that the newest message of a key has the greatest one.

    entry (41 bits, counted over all ledgers) | message in the entry (21 bits) | tombstone (1 bit)

Message 0 is a single message or an entry that is not split; messages of batches are counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.protocol.field_walk import Int64s
from pulsar_on_spark.topic.managed_ledger.cursor.holes import MAX_BATCH_MESSAGES

MESSAGE_BITS = 21
_ENTRY_BITS = 41
assert MAX_BATCH_MESSAGES < 1 << MESSAGE_BITS


class Places:
    """The places of a compaction's entries.

    Args:
        ends: For each ledger, a number greater than all of its entry ids.

    Raises:
        InvalidArgumentError: there are more entries than can be numbered.
    """

    def __init__(self, ends: Mapping[LedgerId, int]) -> None:
        ledgers = sorted(ends)
        *bases, total = accumulate((ends[ledger] for ledger in ledgers), initial=0)
        if total >> _ENTRY_BITS:
            raise InvalidArgumentError(f"{total} entries are too many for one compaction: trim the topic.")
        self._bases = dict(zip(ledgers, bases, strict=True))

    def of_entries(self, ledger: LedgerId, entries: Int64s) -> Int64s:
        """Return the places of entries that are not split."""
        return (entries + self._bases[ledger]) << MESSAGE_BITS

    def of_messages(self, ledger: LedgerId, entries: Int64s, batch_indexes: Int64s) -> Int64s:
        """Return the places of messages; the batch index of a single message is -1."""
        return self.of_entries(ledger, entries) + batch_indexes + 1


def next_entry(entry_places: Int64s) -> Int64s:
    """Return the place of the entry that follows each of these entries."""
    return entry_places + (1 << MESSAGE_BITS)


def is_place(places: Int64s, found: Int64s) -> np.typing.NDArray[np.bool_]:
    """Return a flag for each place: True if it is among the sorted places `found`."""
    if not len(found) or not len(places):
        return np.zeros(len(places), np.bool_)
    at = np.minimum(np.searchsorted(found, places), len(found) - 1)
    return np.asarray(found[at] == places)
