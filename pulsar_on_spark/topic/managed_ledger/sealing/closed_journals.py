"""Sealing, trimming and removal of the CLOSED journals of dead brokers, which any process may do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from pulsar_on_spark.topic.managed_ledger.sealing.seals import closed_incarnations
from pulsar_on_spark.topic.managed_ledger.sealing.trim import GRACE_S, Trimmer

log = logging.getLogger(__name__)

_MAX_PASSES = 10_000


@dataclass(frozen=True, slots=True)
class ClosedJournals:
    """The work done on CLOSED journals, as numbers.

    `sealed_entries` entries were sealed, `deleted_files` journal files deleted, and `cleared` journals removed.
    """

    sealed_entries: int = 0
    deleted_files: int = 0
    cleared: int = 0


def seal_closed(root: RootHandle, on_problem: Callable[[str], None], grace_s: float = GRACE_S) -> ClosedJournals:
    """Seal and trim all CLOSED journals. A problem with one journal is logged, and the other journals are continued.

    Files are deleted at the earliest `grace_s` seconds after their trim, so a journal is removed by a second call.

    Args:
        root: The root.
        on_problem: Called with a sentence about each problem.
        grace_s: Seconds for which journal files are kept after their trim.

    Raises:
        MetadataError: the metadata cannot be read.
    """
    entries = files = cleared = 0
    for incarnation in closed_incarnations(root.store.view()):
        try:
            entries += _seal(root, incarnation)
            trimmed = Trimmer(root, incarnation, grace_s=grace_s).trim()
        except (PulsarpyError, OSError) as error:
            log.warning(
                "The journal of incarnation %s cannot be sealed or trimmed yet: %s",
                incarnation,
                error,
                extra={"incarnation": incarnation},
            )
            on_problem(f"the journal of incarnation {incarnation} cannot be sealed or trimmed yet: {error}")
        else:
            files += trimmed.deleted_files
            cleared += trimmed.is_cleared
    return ClosedJournals(entries, files, cleared)


def _seal(root: RootHandle, incarnation: IncarnationId) -> int:
    sealer = Sealer(root, incarnation, is_live=False)
    entries = 0
    try:
        for _ in range(_MAX_PASSES):
            done = sealer.seal(tail=True)
            entries += 0 if done.lost else done.entries
            if not done.journal_bytes:
                break
        return entries
    finally:
        sealer.close()
