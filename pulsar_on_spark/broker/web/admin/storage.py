"""Storage paths, copies and journals, as `pulsarpy status` shows them of a root. Not in Pulsar."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import TypeAdapter

from pulsar_on_spark.broker.web.requests import BrokerServices, administers, refused
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.status import StorageStatus, storage_status

router = APIRouter(prefix="/admin/v2/storage", tags=["storage"], dependencies=[Depends(administers)])

TIMEOUT_S: Final = 10.0
"""Time to wait for the disks."""
_STATUS: Final = TypeAdapter(StorageStatus)


class StorageLook:
    """One scan of the disks at a time, shared by all requests meanwhile: a disk that hangs blocks one thread."""

    def __init__(self) -> None:
        self._looking: asyncio.Task[StorageStatus] | None = None

    async def look(self, root: Root) -> StorageStatus:
        """The storage now.

        Raises:
            TimeoutError: a disk does not answer.
            PulsarpyError: metadata or reports cannot be read.
        """
        looking = self._looking
        if looking is None or looking.done():
            looking = self._looking = asyncio.create_task(asyncio.to_thread(storage_status, root))
        return await asyncio.wait_for(asyncio.shield(looking), TIMEOUT_S)


async def _look(request: Request) -> StorageLook:
    return cast(StorageLook, request.app.state.storage_look)


@router.get("", responses=refused(503, "A disk does not answer, or the metadata cannot be read."))
async def storage(services: BrokerServices, look: Annotated[StorageLook, Depends(_look)]) -> dict[str, Any]:
    """Storage paths, missing and bad copies, losses, journals, and the last audit."""
    try:
        found = await look.look(services.root)
    except TimeoutError as error:
        raise HTTPException(
            503, f"The storage paths were not looked at in {TIMEOUT_S:.0f} s: a disk hangs, see the host's log."
        ) from error
    return cast(dict[str, Any], _STATUS.dump_python(found, mode="json"))
