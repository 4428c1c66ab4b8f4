"""The slots of subscription types, and the target owner of each slot of a Shared or Key_Shared subscription.

Every consumer computes the same targets from the same subscription record and the same live consumers. If consumers see
different live consumers for a while, the only effect is that they wait for each other, because a slot changes its owner
by compare-and-set (`ownership.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pulsar_on_spark.topic.entries.cutting import SLOTS

SLOTTED: Sequence[int] = range(SLOTS)
UNDIVIDED: Sequence[int] = range(1)
"""The slots of Exclusive and Failover: only slot 0, which is the whole topic."""


def slots_of(subscription_type: str) -> Sequence[int]:
    """Return the slots of a subscription of this type: 64 for Shared and Key_Shared, one for other types."""
    return SLOTTED if subscription_type in ("Shared", "Key_Shared") else UNDIVIDED


def targets(consumers: Iterable[str], owners: Mapping[int, str]) -> dict[int, str]:
    """Assign the slots evenly to the live consumers, moving as few slots as possible.

    Shares differ by at most one slot. The consumers with the most slots get the larger shares (on a tie, those whose
    names sort first), and every consumer keeps its lowest slots up to its share. All other slots, which are surplus,
    free or owned by dead consumers, are assigned in the order of the consumers' names.

    Args:
        consumers: The live consumers.
        owners: The current owner of each slot that has one; owners that are not live are ignored.

    Returns:
        The consumer of each slot; empty if no consumer is live.
    """
    names = sorted(set(consumers))
    if not names:
        return {}
    counts = Counter(owners.get(slot) for slot in SLOTTED)
    share, larger = divmod(len(SLOTTED), len(names))
    by_need = sorted(names, key=lambda name: -counts[name])
    room = {name: share + (rank < larger) for rank, name in enumerate(by_need)}

    target: dict[int, str] = {}
    for slot in SLOTTED:
        owner = owners.get(slot)
        if owner is not None and room.get(owner, 0) > 0:
            target[slot] = owner
            room[owner] -= 1
    dealt = (name for name in names for _ in range(room[name]))
    for slot in SLOTTED:
        if slot not in target:
            target[slot] = next(dealt)
    return target
