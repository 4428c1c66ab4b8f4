"""The upgrade of a root to the current format, while no process uses the root."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.metadata.upgrade import upgrade_tables
from pulsar_on_spark.model.errors import InvalidArgumentError, NotARootError

LIVE_S: Final = 30.0
"""Age in seconds up to which a lease's holder counts as alive: a live holder renews its lease more often."""


def upgrade(root: Path) -> bool:
    """Upgrade a root to the current format.

    Returns:
        True if the root was upgraded; False if it had the current format already.

    Raises:
        NotARootError: the path is no root.
        InvalidArgumentError: a broker or a consumer uses the root.
        MetadataError: the root's tables are damaged, or cannot be read or written now.
    """
    if not MetadataStore.exists(root):
        raise NotARootError(f"{root} is not a pulsar_on_spark root: give the path of one.")
    for lease in (root / "leases").glob("*/*.json"):
        with suppress(FileNotFoundError):
            age_s = time.time() - lease.stat().st_mtime
            if age_s < LIVE_S:
                raise InvalidArgumentError(
                    f"A process used the root {root} {age_s:.0f} s ago ({lease}): stop brokers and Spark jobs that use "
                    f"it, wait {LIVE_S:.0f} s, and try again."
                )
    return upgrade_tables(root)
