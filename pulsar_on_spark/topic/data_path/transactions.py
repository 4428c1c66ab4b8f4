"""Transactions of writers: detect a replay of a write, and compare its content. Pure.

    the writer's key is at    and that version's record        write of a query          with `txnAppId`
    ------------------------  -------------------------------  ------------------------  ----------------
    a lower version, or none  -                                is new                    is new
    this version              has the same content             is a replay               is a replay
    this version              has other content                error                     error
    this version              is missing (older programs)      is a replay               is a replay
    a higher version          -                                error: Spark runs only    is a replay (as
                                                               its last batch again      in Delta)

The content is the number of messages by topic and, if both the record and the write know them, the planned offsets of
the query's sources: a batch may be planned again with equally many but other rows. Nothing else is compared, because
tasks differ after a merge of segments or with another number of cores, and values may contain the time.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import WriterRecord
from pulsar_on_spark.model.errors import ReplayDiffersError
from pulsar_on_spark.model.names import TopicName


@dataclass(frozen=True, slots=True)
class Transaction:
    """A write's transaction.

    Attributes:
        key: The writer's key (see `metadata.keys`).
        version: The key's new version.
        name: Description for errors and the log.
        former_key: The key under which older versions of this project may have committed the writer's version.
        is_batch: True for a micro-batch of a streaming query.
        offsets: Digest of the planned offsets of the micro-batch's sources; None if they are unknown.
    """

    key: str
    version: int
    name: str
    former_key: str | None = None
    is_batch: bool = False
    offsets: str | None = None


def batch_of(query_id: str, batch_id: int, offsets: str | None = None) -> Transaction:
    """Return the transaction of a micro-batch.

    `offsets` is the digest of its planned offsets; None if they are unknown.
    """
    name = f"batch {batch_id} of streaming query {query_id}"
    return Transaction(keys.query(query_id), batch_id, name, is_batch=True, offsets=offsets)


def application_write(app_id: str, version: int, topic: TopicName | None) -> Transaction:
    """Return the transaction of a write with `txnAppId` and `txnVersion`; `topic` is None if rows name their topics."""
    target = "" if topic is None else topic.full
    where = "topics that rows name" if topic is None else topic.full
    name = f"txnVersion {version} of txnAppId {app_id!r} for {where}"
    return Transaction(keys.application(app_id, target), version, name, keys.application_of_root(app_id))


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a write: its number of messages, and a digest of the numbers by topic."""

    rows: int
    digest: str

    def record_of(self, transaction: Transaction) -> WriterRecord:
        """Make the record of a transaction with this content."""
        return WriterRecord(
            writer=transaction.key,
            version=transaction.version,
            rows=self.rows,
            digest=self.digest,
            offsets=transaction.offsets,
        )


def content_of(rows: Iterable[tuple[str, int]]) -> Content:
    """Return a write's content from pairs (full name of a topic or partition, number of messages) in any order."""
    by_topic: Counter[str] = Counter()
    for name, count in rows:
        by_topic[TopicName.parse(name).partitioned_base.full] += count
    digest = hashlib.sha256(json.dumps(sorted(by_topic.items())).encode()).hexdigest()[:16]
    return Content(by_topic.total(), digest)


def is_replay(transaction: Transaction, committed: int | None, last: WriterRecord | None, content: Content) -> bool:
    """Return True if the transaction is committed already, with the same content.

    Args:
        transaction: The write's transaction.
        committed: The highest committed version of the transaction's keys; None if they were never used.
        last: The record of the writer's last transaction; None if there is none.
        content: The write's content.

    Raises:
        ReplayDiffersError: the transaction is committed with other content.
    """
    version = transaction.version
    if committed is None or committed < version:
        return False
    if committed > version:
        if transaction.is_batch and content.rows:
            raise ReplayDiffersError(
                f"{_capital(transaction.name)} came after batch {committed} was committed to its topics: the query's "
                f"checkpoint is older than the topics. {_REMEDY}"
            )
        return True
    if last is None or last.version != version:
        return True
    if last.digest != content.digest:
        raise ReplayDiffersError(
            f"{_capital(transaction.name)} is committed with {last.rows} messages, and came again with {content.rows}, "
            f"or for other topics. Its checkpoint is older than its topics, or its rows differ at each run. {_REMEDY}"
        )
    if None not in (last.offsets, transaction.offsets) and last.offsets != transaction.offsets:
        raise ReplayDiffersError(
            f"{_capital(transaction.name)} is committed with {last.rows} messages, and came again with {content.rows} "
            f"from other offsets of its sources. Its checkpoint is older than its topics. {_REMEDY}"
        )
    return True


_REMEDY = "Nothing was written: look up 'A batch that comes again' in docs/streaming.md."


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]
