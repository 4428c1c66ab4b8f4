"""A look at incarnations that have ended, with or without a record."""

from __future__ import annotations

from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import IncarnationId


def is_ended(view: View, incarnation: IncarnationId) -> bool:
    """Return True if an incarnation that was started is CLOSED.

    Sealing deletes the record of a CLOSED incarnation as soon as nothing is left to seal, which may be at once.
    """
    record = view.get(IncarnationRecord, incarnation)
    return record is None or record.state == "CLOSED"
