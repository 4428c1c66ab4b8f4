"""Base class of all records of the main table."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

COLUMN_FIELDS = ("topic_id", "ledger_id", "first_entry", "entries", "rows", "bytes", "file_id")
"""Record fields that are stored as typed columns of the main table (null for kinds without the field)."""


class Record(BaseModel):
    """A current row of the main table; (`kind`, `record_id`) is its record key."""

    model_config = ConfigDict(frozen=True, extra="allow")
    kind: ClassVar[str]

    @property
    def record_id(self) -> str:
        """The id within the kind. The ids of a topic's ledgers and segments sort in the order of the chain."""
        raise NotImplementedError
