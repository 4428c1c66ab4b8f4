"""The hosts of journals: a journal on the disks of another host can be read and recovered only on that host."""

from __future__ import annotations

import socket

from pulsar_on_spark.metadata.records import IncarnationRecord, PathRecord
from pulsar_on_spark.metadata.state import RecentView


def other_host(view: RecentView, incarnation: str) -> str | None:
    """Return the name of a host with files of an incarnation's journal, if no file is on this host or a shared store.

    The result is None if a file may be reachable from this host, or if the journal has no files.
    """
    row = view.get(IncarnationRecord, incarnation)
    used = {path_id for fragment in row.fragments for path_id, _ in fragment.copies} if row is not None else set()
    hosts = {path.host for path in view.all(PathRecord) if path.path_id in used}
    return None if not hosts or hosts & {"", socket.gethostname()} else min(hosts)
