"""The rules by which a topic switches to a new ledger: Pulsar's `managedLedgerMax...PerLedger`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from pulsar_on_spark.model.ids import TopicId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import OpenLedger

_AT_ONCE = 256
"""Maximum number of ledgers that one commit replaces, because it needs a key for each topic; others follow later."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class RollOver:
    """The limits at which a topic switches to a new ledger.

    Attributes:
        max_entries: Maximum number of entries.
        max_bytes: Maximum bytes of the entries, as received.
        max_age_s: Maximum seconds since the ledger was opened.
        min_age_s: Age in seconds up to which no limit applies, so that a topic gets few ledgers.
    """

    max_entries: int = 50_000
    max_bytes: int = 2048 * _MIB
    max_age_s: float = 240 * 60.0
    min_age_s: float = 10 * 60.0

    def is_due(self, entries: int, size_bytes: int, age_s: float) -> bool:
        """Return True if a ledger of this size and age (in seconds) must be replaced.

        An empty ledger is never replaced.
        """
        if entries == 0 or age_s < self.min_age_s:
            return False
        return entries >= self.max_entries or size_bytes >= self.max_bytes or age_s >= self.max_age_s


def grown(
    ledgers: Mapping[TopicId, OpenLedger], limits: RollOver, now_s: float, besides: Collection[TopicPart]
) -> list[TopicPart]:
    """Return the topics, other than `besides`, that must switch to a new ledger at `now_s` (monotonic clock)."""
    found = (
        ledger.part
        for ledger in ledgers.values()
        if limits.is_due(ledger.next, ledger.bytes, now_s - ledger.opened_s) and ledger.part not in besides
    )
    return list(islice(found, _AT_ONCE))
