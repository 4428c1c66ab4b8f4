"""Storage paths, copies and journals of the root, as `pulsarpy status` shows them. Not in Pulsar."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import TypeAdapter

from pulsar_on_spark.broker.web.requests import BrokerServices, refused
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.status import StorageStatus, storage_status

router = APIRouter(prefix="/admin/v2/storage", tags=["storage"])

TIMEOUT_S: Final = 10.0
"""Time that a request waits for a scan of the storage paths, in seconds."""
_STATUS: Final = TypeAdapter(StorageStatus)


class StorageScan:
    """A scan of the disks that concurrent requests share, so that a disk that hangs blocks only one thread."""

    def __init__(self) -> None:
        self._scanning: asyncio.Task[StorageStatus] | None = None

    async def scan_storage(self, root: Root) -> StorageStatus:
        """Return the state of the storage from the running scan, or from a new scan.

        Raises:
            TimeoutError: a disk does not respond.
            PulsarpyError: metadata or reports cannot be read.
        """
        scanning = self._scanning
        if scanning is None or scanning.done():
            scanning = self._scanning = asyncio.create_task(asyncio.to_thread(storage_status, root))
        return await asyncio.wait_for(asyncio.shield(scanning), TIMEOUT_S)


async def _scan(request: Request) -> StorageScan:
    return cast(StorageScan, request.app.state.storage_scan)


@router.get("", responses=refused(503, "A disk does not respond, or the metadata cannot be read."))
async def storage(services: BrokerServices, scan: Annotated[StorageScan, Depends(_scan)]) -> dict[str, Any]:
    """Return storage paths, missing and corrupt copies, losses, journals, and the last audit."""
    try:
        state = await scan.scan_storage(services.root)
    except TimeoutError as error:
        raise HTTPException(
            503, f"Scanning the storage paths took longer than {TIMEOUT_S:.0f} s: a disk hangs, see the host's log."
        ) from error
    return cast(dict[str, Any], _STATUS.dump_python(state, mode="json"))
