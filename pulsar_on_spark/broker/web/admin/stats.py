"""Stats of topics: rates in and out, storage, and the backlog of each subscription."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Query

from pulsar_on_spark.broker.observe.internal_stats import with_reasons
from pulsar_on_spark.broker.observe.models import (
    InternalStats,
    PartitionedInternalStats,
    PartitionedTopicMetadata,
    PartitionedTopicStats,
    TopicStats,
)
from pulsar_on_spark.broker.observe.topic_stats import summed
from pulsar_on_spark.broker.observe.volatile_stats import volatile_stats
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.topics.non_persistent import NonPersistentTopic
from pulsar_on_spark.broker.topics.topic_policies import default_policies
from pulsar_on_spark.broker.web.admin.ids import MessageIdJson
from pulsar_on_spark.broker.web.requests import (
    TOPIC,
    BrokerServices,
    NamedTopic,
    StoredTopic,
    own_parts,
    refused,
)
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.model.errors import TopicNotFoundError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.maintenance.retention.trim import kept_segments
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.steps import count_waiting

router = APIRouter(tags=["stats"])

_MISSING: Final = refused(404, "There is no such topic, or it is partitioned.")
_NoPublishers = Annotated[bool, Query(alias="excludePublishers", description="Leave the producers out.")]
_NoConsumers = Annotated[bool, Query(alias="excludeConsumers", description="Leave the consumers out.")]
_MISSING_PARTITIONED: Final = refused(404, "There is no such partitioned topic.")


@router.get(f"{TOPIC}/stats", responses=_MISSING, response_model_exclude_none=True)
async def stats(
    services: BrokerServices, name: NamedTopic, no_publishers: _NoPublishers = False, no_consumers: _NoConsumers = False
) -> TopicStats:
    """Return the stats of a topic without partitions, or of one partition."""
    if not name.is_persistent:
        topic = await services.topics.get(name)
        assert isinstance(topic, NonPersistentTopic), "it is not stored"
        topic_stats = volatile_stats(topic, services.overview.meters.rates, services.service_url)
    else:
        record = await _single(services, name)
        topic_stats = (await services.overview.stats([record]))[record.name]
    return topic_stats.without(publishers=no_publishers, consumers=no_consumers)


@router.get(f"{TOPIC}/partitioned-stats", responses=_MISSING_PARTITIONED, response_model_exclude_none=True)
async def partitioned_stats(
    services: BrokerServices,
    name: StoredTopic,
    per_partition: Annotated[bool, Query(alias="perPartition")] = True,
    no_publishers: _NoPublishers = False,
    no_consumers: _NoConsumers = False,
) -> PartitionedTopicStats:
    """Return the stats of a partitioned topic: the sum, and each partition's unless `perPartition=false`."""
    metadata, records = await _partitioned(services, name)
    parts_of_it = {
        key: part.without(publishers=no_publishers, consumers=no_consumers)
        for key, part in (await services.overview.stats(records)).items()
    }
    total = summed(parts_of_it, metadata)
    return total if per_partition else total.model_copy(update={"partitions": {}})


@router.get(f"{TOPIC}/internalStats", responses=_MISSING, response_model_exclude_none=True)
async def internal_stats(services: BrokerServices, name: StoredTopic) -> InternalStats:
    """Return the stats of the ledgers and cursors of a topic without partitions, or of one partition."""
    record = await _single(services, name)
    contents = (await services.overview.internal_stats([record]))[record.name]
    return await _with_reasons(services, name, contents)


@router.get(f"{TOPIC}/partitioned-internalStats", responses=_MISSING_PARTITIONED, response_model_exclude_none=True)
async def partitioned_internal_stats(services: BrokerServices, name: StoredTopic) -> PartitionedInternalStats:
    """Return the stats of the ledgers and cursors of each partition of a partitioned topic."""
    metadata, records = await _partitioned(services, name)
    partitions = await services.overview.internal_stats(records)
    return PartitionedInternalStats(
        metadata=metadata,
        partitions={key: await _with_reasons(services, TopicName.parse(key), part) for key, part in partitions.items()},
    )


@router.get(f"{TOPIC}/internal-info", responses=_MISSING)
async def internal_info(services: BrokerServices, name: StoredTopic) -> dict[str, Any]:
    """Return a summary of a topic's ledgers and cursors (Pulsar's `ManagedLedgerInfo`)."""
    record = await _single(services, name)
    contents = (await services.overview.internal_stats([record]))[record.name]
    return {
        "version": 1,
        "creationDate": record.created_at.isoformat(),
        "ledgers": [
            {
                "ledgerId": ledger.ledger_id,
                "entries": ledger.entries,
                "size": ledger.size,
                "offloaded": ledger.offloaded,
            }
            for ledger in contents.ledgers
        ],
        "cursors": {key: {"markDelete": cursor.mark_delete_position} for key, cursor in contents.cursors.items()},
    }


@router.get(f"{TOPIC}/backlog", responses=_MISSING)
async def backlog(services: BrokerServices, name: StoredTopic) -> dict[str, Any]:
    """Return each subscription's number of unacknowledged messages (Pulsar's `PersistentOfflineTopicStats`)."""
    record = await _single(services, name)
    stored = (await services.overview.stats([record]))[record.name]
    return {
        "storageSize": stored.storage_size,
        "totalMessages": stored.stored_messages,
        "messageBacklog": max((each.msg_backlog for each in stored.subscriptions.values()), default=0),
        "topicName": record.name,
        "cursorDetails": {
            key: {"cursorBacklog": subscription.msg_backlog, "cursorLedgerId": -1}
            for key, subscription in stored.subscriptions.items()
        },
    }


@router.put(f"{TOPIC}/backlogSize", responses=_MISSING)
async def backlog_size(services: BrokerServices, name: StoredTopic, body: MessageIdJson) -> int:
    """Return the number of bytes of the keys and values of all messages after a message id."""
    record = await _single(services, name)
    contents = await services.overview.contents(record)
    behind = Position(LedgerId(body.ledger_id), EntryId(body.entry_id + 1)) if body.ledger_id >= 0 else EARLIEST
    end = chain.read_limit(contents.view, record.topic_id)
    return count_waiting(contents.view, record.topic_id, behind, end).bytes


async def _with_reasons(services: Services, name: TopicName, contents: InternalStats) -> InternalStats:
    """Return the stats with each ledger's sealed segments added, and the reasons why the segments are kept."""
    defaults = default_policies(services.settings)
    kept = await asyncio.to_thread(kept_segments, services.root.store, name, defaults)
    return with_reasons(contents, kept)


async def _single(services: Services, name: TopicName) -> TopicRecord:
    """Return the record of a topic without partitions, or of a partition; 404 for a partitioned topic, as in Pulsar."""
    record = catalog.require_topic(await services.views.view(), name)
    if record.partitions is not None:
        raise TopicNotFoundError(f"Topic {name} is partitioned: ask for its partitioned-stats, or name a partition.")
    return record


async def _partitioned(services: Services, name: TopicName) -> tuple[PartitionedTopicMetadata, list[TopicRecord]]:
    view = await services.views.view()
    record = catalog.require_topic(view, name)
    if record.partitions is None:
        raise HTTPException(404, f"Topic {name} is not partitioned: get its `stats` instead.")
    return PartitionedTopicMetadata(partitions=record.partitions), own_parts(services, view, name)
