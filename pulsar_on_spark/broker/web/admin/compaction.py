"""Compaction of topics: start a compaction, and report its state."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, Field

from pulsar_on_spark.broker.web.admin.topics import MISSING
from pulsar_on_spark.broker.web.requests import TOPIC, BrokerServices, StoredTopic, refused
from pulsar_on_spark.model.errors import TopicBusyError

router = APIRouter(tags=["topics"])


class CompactionJson(BaseModel):
    """The state of a compaction (Pulsar's `LongRunningProcessStatus`); `last_error` is "" unless it has failed."""

    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]
    last_error: str = Field(alias="lastError")


@router.put(
    f"{TOPIC}/compaction", status_code=204, responses=MISSING | refused(409, "A compaction is running already.")
)
async def compact(services: BrokerServices, name: StoredTopic) -> None:
    """Compact a topic, or each of its partitions, in the background."""
    try:
        await services.topics.compact(name)
    except TopicBusyError as error:
        raise HTTPException(409, str(error)) from error


@router.get(f"{TOPIC}/compaction", responses=MISSING)
async def status(services: BrokerServices, name: StoredTopic) -> CompactionJson:
    """Return the state of the last compaction that this broker started."""
    last = await services.topics.compaction_status(name)
    return CompactionJson(status=last.status, lastError=last.last_error)
