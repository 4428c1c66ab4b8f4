"""The lock of a broker, and the rule that a broker serves a root alone if its journal is on disks and the root is not.

The lock files of a local root's brokers are in the root's folder. On an object store, a broker with its journal on its
host's disks locks the first journal directory. Other brokers could not recover that journal, so this broker serves
alone. Brokers with their journals on the store have no lock: their leases show whether they are alive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pulsar_on_spark.broker.runtime.broker_lock import ONLY, BrokerLock, Lock, NoLock, lock_file
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.object_protocol import CommitPolicy
from pulsar_on_spark.ledger.journal.places import JournalPath
from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.model.errors import BrokerRunningError, InvalidArgumentError, StoragePathError
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.topic.managed_ledger.incarnation.recover_dead import settled_leases
from pulsar_on_spark.topic.managed_ledger.sealing.process import LOOK_INTERVAL_S, SealingPolicy

SEAL_WITHIN_S: Final = 60.0
SEAL_FOR_OTHER_HOSTS_WITHIN_S: Final = 10.0
LOOK_AT_OBJECTS_INTERVAL_S: Final = 1.0
"""Interval at which the sealer checks an object store, in seconds: each check costs requests."""
_MIB: Final = 1 << 20


def lock_broker(root: Root, broker: str) -> Lock:
    """Acquire and return the lock of a broker.

    If the journal is on a host's disks and the root on an object store, this takes as long as a lease lasts, unless the
    other brokers have ended cleanly.

    Args:
        root: The open root.
        broker: The broker's id.

    Raises:
        BrokerRunningError: a broker with this id runs, or another broker serves a root that only one broker may serve.
        InvalidArgumentError: the root is on an object store and has no path for journals that this host can use.
        StorageError, MetadataError: the root cannot be read now.
    """
    if isinstance(root.place, Path):
        return BrokerLock(root.place, root.place / lock_file(broker))
    path = _journal_path(root)
    if not isinstance(path, LocalPath):
        return NoLock()
    lock = BrokerLock(root.place, path.directory / ONLY)
    try:
        _require_no_other_broker(root, lock)
    except BaseException:
        lock.release()
        raise
    return lock


def sealing_policy(root: Root, settings: BrokerSettings) -> SealingPolicy:
    """Return the policy of a broker's sealing processes: limits of the lag and of entries' age, and check interval."""
    is_hybrid = not isinstance(root.place, Path) and isinstance(_journal_path(root), LocalPath)
    default_s = SEAL_FOR_OTHER_HOSTS_WITHIN_S if is_hybrid else SEAL_WITHIN_S
    return SealingPolicy(
        lag_limit_bytes=settings.sealing_lag_limit_mb * _MIB,
        max_age_s=settings.seal_within_s or default_s,
        look_interval_s=LOOK_INTERVAL_S if isinstance(root.place, Path) else LOOK_AT_OBJECTS_INTERVAL_S,
    )


def journal_limits(settings: BrokerSettings) -> JournalLimits:
    """Return the limits of each journal: the interval, size and number of objects that it writes on an object store."""
    commits = CommitPolicy(
        settings.journal_object_interval_ms / 1000,
        settings.journal_object_max_mb * _MIB,
        settings.journal_objects_in_flight,
    )
    return JournalLimits(object_commits=commits)


def _journal_path(root: Root) -> JournalPath:
    problem = ""
    for path in root.writable_journal_paths(root.store.view()):
        try:
            path.check()
        except StoragePathError as error:
            problem = f" ({error})"
        else:
            return path
    raise InvalidArgumentError(
        f"The root {root.place} has no storage path for journals that this host can use{problem}: add one with "
        "`pulsarpy storage add URL --role journal`; if this host was renamed, add its former directory again."
    )


def _require_no_other_broker(root: Root, lock: BrokerLock) -> None:
    """Require that no lease shows another broker of the root to be alive.

    Raises:
        BrokerRunningError: another broker is alive.
    """
    records = root.store.view().all(IncarnationRecord)
    others = [each.incarnation for each in records if each.state != "CLOSED" and each.incarnation not in lock.former]
    watcher = settled_leases(root, others)
    alive = [each for each in others if watcher.lease_state(each) is LeaseState.ALIVE]
    if alive:
        raise BrokerRunningError(
            f"The root {root.place} is served by another broker already (incarnation {alive[0]}): stop that one, or "
            "give another root."
        )
