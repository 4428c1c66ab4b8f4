"""The compare-and-set keys of the main table: Delta's app transactions, whose versions commits increase.

The log keeps every key forever. So only objects of which there are few have keys, never ledgers, batches or files.
"""

from __future__ import annotations

import hashlib
import zlib

IDS = "cluster/ids"
SETTINGS = "cluster/settings"
ISOLATION = "isolation"
"""Key of all namespace isolation policies, which change rarely."""
FOLD = "job/fold"
FILES = "job/files"
"""Key of commits that change committed file records or take storage paths out of use, so that they conflict."""
WRITE_BUCKETS = 64


def path(path_id: int) -> str:
    """Key of the record of the storage path with this id."""
    return f"path/{path_id}"


def tenant(name: str) -> str:
    """Key of a tenant."""
    return f"tenant/{name}"


def namespace(name: str) -> str:
    """Key of the namespace with this full name, which is `tenant/namespace`."""
    return f"namespace/{name}"


def broker(name: str) -> str:
    """Key of the registration of the broker with this id."""
    return f"broker/{name}"


def bundles(namespace: str) -> str:
    """Key of a namespace's bundles: their ranges and their owners."""
    return f"bundles/{namespace}"


def permissions(namespace: str) -> str:
    """Key of a namespace's permissions."""
    return f"permissions/{namespace}"


def topic(full_name: str) -> str:
    """Key of a topic: its record, schemas, ledgers and segments, and the creation of its subscriptions."""
    return f"topic/{full_name}"


def subscription(topic_id: str, name: str) -> str:
    """Key of a subscription's owners on one topic."""
    return f"sub/{topic_id}/{name}"


def incarnation_log(incarnation: str) -> str:
    """Key of the record of an incarnation's journal: its state, its fragments, its end."""
    return f"incarnation/{incarnation}/log"


def incarnation_seal(incarnation: str) -> str:
    """Key of all commits on behalf of an incarnation: opening and closing ledgers, seals, trims.

    A takeover increases it together with the log's key, which fences the incarnation's sealer and trimmer.
    """
    return f"incarnation/{incarnation}/seal"


def query(query_id: str) -> str:
    """Key of a streaming query's writes; its version is the batch id."""
    return f"q/{query_id}"


def application(txn_app_id: str, target: str) -> str:
    """Key of a user's `txnAppId` for one target of writes; its version is `txnVersion`.

    Args:
        txn_app_id: The option.
        target: The full name of the topic; "" for a write whose rows name their topics.
    """
    return f"{application_of_root(txn_app_id)}/{hashlib.sha256(target.encode()).hexdigest()[:16]}"


def application_of_root(txn_app_id: str) -> str:
    """Key of a user's `txnAppId` for all targets. Old versions wrote it; this version only reads it."""
    return f"app/{txn_app_id}"


def write_bucket(write_id: str) -> str:
    """Key that the attach and the abort of a write share, so that the two commits conflict."""
    return f"write/{zlib.crc32(write_id.encode()) % WRITE_BUCKETS}"


def job(name: str) -> str:
    """Key of the housekeeping job with this name."""
    return f"job/{name}"
