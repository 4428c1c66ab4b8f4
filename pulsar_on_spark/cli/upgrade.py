"""`pulsarpy upgrade`: upgrade a root to the current format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.storage.root_place import parse_place


def upgrade(
    root: Annotated[str, typer.Argument(help="The root. No process may use it; back it up before.")],
) -> None:
    """Upgrade a root to the format of this version. Older versions cannot open the root afterwards."""
    from pulsar_on_spark.broker.runtime.broker_lock import ONLY, BrokerLock
    from pulsar_on_spark.metadata.store import FORMAT_VERSION
    from pulsar_on_spark.topic.maintenance.upgrade import upgrade as upgrade_root

    path = parse_place(root)
    if not isinstance(path, Path):
        raise InvalidArgumentError(
            f"{path} is on an object store, where every root has the current format: no upgrade is needed."
        )
    lock = BrokerLock(path, path / ONLY)
    try:
        is_done = upgrade_root(path)
    finally:
        lock.release()
    if is_done:
        output.say(f"Upgraded {path} to format version {FORMAT_VERSION}.")
    else:
        output.say(f"The root {path} has format version {FORMAT_VERSION} already.")
