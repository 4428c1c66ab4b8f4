"""Housekeeping of a root: one pass over everything that accumulates. Any number of passes may run at once."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from pulsar_on_spark.ledger.files import OS_FILES, write_synced
from pulsar_on_spark.ledger.storage_path import StoragePath
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.topic.collect import DEFAULT_AGES, Ages, CollectReport, collect
from pulsar_on_spark.topic.expiry import expire_subscriptions, sweep_leases
from pulsar_on_spark.topic.merge import MergeReport, merge
from pulsar_on_spark.topic.progress import Progress, silent

if TYPE_CHECKING:
    from pulsar_on_spark.topic.root import Root

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MaintainReport:
    """What one pass did.

    Attributes:
        healed_paths: Storage paths that had failed and are written to again.
        merge: See `merge`.
        collect: See `collect`.
        expired_subscriptions: How many were deleted because nobody read them.
        folded: Whether superseded metadata rows were folded away.
        vacuumed_files: Metadata files that were deleted.
        swept_leases: Old lease files that were deleted.
        problems: What kept a step from being done, one sentence each; the other steps were done.
    """

    healed_paths: tuple[PathId, ...] = ()
    merge: MergeReport = field(default_factory=MergeReport)
    collect: CollectReport = field(default_factory=CollectReport)
    expired_subscriptions: int = 0
    folded: bool = False
    vacuumed_files: int = 0
    swept_leases: int = 0
    problems: tuple[str, ...] = ()


def maintain(root: Root, ages: Ages = DEFAULT_AGES, progress: Progress = silent) -> MaintainReport:
    """Probe failed storage paths, merge, collect garbage, expire subscriptions, fold, checkpoint and vacuum.

    A step that fails is reported and does not keep the others from being done.
    """
    problems: list[str] = []

    def step(name: str, work: Callable[[], T], otherwise: T) -> T:
        progress(name, 0, 1)
        try:
            done = work()
        except (PulsarpyError, OSError) as error:
            log.warning("Step %r of maintain failed: %s", name, error)
            problems.append(f"{name}: {error}")
            return otherwise
        progress(name, 1, 1)
        return done

    return MaintainReport(
        healed_paths=step("probe storage paths", lambda: heal_paths(root), ()),
        merge=step("merge", lambda: merge(root, progress), MergeReport()),
        expired_subscriptions=step("expire subscriptions", lambda: expire_subscriptions(root), 0),
        collect=step("collect", lambda: collect(root, ages, progress), CollectReport()),
        folded=step("fold and checkpoint", root.store.housekeep, False),
        vacuumed_files=step("vacuum", root.store.vacuum, 0),
        swept_leases=step("sweep leases", lambda: sweep_leases(root), 0),
        problems=tuple(problems),
    )


def heal_paths(root: Root) -> tuple[PathId, ...]:
    """Let storage paths that failed under a write, and are well again, be written to; returns which."""
    paths = root.storage_paths(root.store.view())
    failed = [record for record in root.store.view().all(PathRecord) if _has_failed(record)]
    well = {record.path_id for record in failed if _is_well(paths[PathId(record.path_id)])}
    healed: list[PathRecord] = []

    def decide(view: View) -> Change | None:
        nonlocal healed
        found = [record for record in view.all(PathRecord) if _has_failed(record) and record.path_id in well]
        healed = [record.model_copy(update={"state": "writable", "reason": ""}) for record in found]
        return Change(puts=healed, keys={keys.path(r.path_id): None for r in healed}) if healed else None

    if well:
        root.store.commit(decide)
    return tuple(PathId(record.path_id) for record in healed)


def _has_failed(record: PathRecord) -> bool:
    """Marked by a write (`Root.mark_failed`), not set to read-only by somebody."""
    return record.state == "read-only" and bool(record.reason)


def _is_well(path: StoragePath) -> bool:
    """Whether the path is the right one and takes a durable file."""
    probe = path.directory / f".probe-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        path.check()
        write_synced(OS_FILES, probe, b"\0" * 65_536)
    except (PulsarpyError, OSError) as error:
        log.warning("Storage path %d is still not well: %s", path.path_id, error)
        return False
    finally:
        with suppress(OSError):
            probe.unlink()
    return True
