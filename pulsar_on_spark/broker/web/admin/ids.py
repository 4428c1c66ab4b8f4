"""Message ids in the JSON of Pulsar's admin API."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, MessageId, Position

_EARLIEST_LEDGER: Final = -1
_LATEST_LEDGER: Final = 2**63 - 1

_Number = Annotated[int, Field(ge=-1, le=2**63 - 1)]


class MessageIdJson(BaseModel):
    """A message id (Pulsar's `MessageIdImpl`, and with a batch index its `BatchMessageIdImpl`).

    `partition_index` is -1 if the topic has no partitions, and `batch_index` is -1 for a whole entry.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    ledger_id: _Number
    entry_id: _Number
    partition_index: Annotated[int, Field(ge=-1, le=2**31 - 1)] = -1
    batch_index: Annotated[int, Field(ge=-1, le=2**31 - 1)] = -1

    @classmethod
    def of(cls, id_: MessageId) -> MessageIdJson:
        """Convert a message id to the form that clients read."""
        return cls(ledger_id=id_.ledger, entry_id=id_.entry, partition_index=id_.partition, batch_index=id_.batch_index)


class CursorPlace(MessageIdJson):
    """The target of a cursor (Pulsar's `ResetCursorData`): a message, or the position after it if it is excluded.

    As in Pulsar's clients, (-1, -1) is the earliest and (2^63 - 1, 2^63 - 1) the latest position. `properties` are
    for a new subscription; None for none.
    """

    is_excluded: Annotated[bool, Field(validation_alias=AliasChoices("isExcluded", "excluded", "is_excluded"))] = False
    """True for the position after the message. Java clients send it as `excluded`."""
    properties: Annotated[dict[str, str], Field(max_length=1000)] | None = None

    def position(self, end: Position) -> Position:
        """Return the position of the next entry to read, which may be outside the topic.

        Args:
            end: The topic's end, which is the latest position.
        """
        if self.ledger_id == _LATEST_LEDGER:
            return end
        if self.ledger_id == _EARLIEST_LEDGER:
            return EARLIEST
        # An entry is delivered as a whole: after a message of a batch, its entry is delivered again.
        is_whole = self.batch_index < 0
        next_ = self.entry_id + (1 if self.is_excluded and is_whole else 0)
        return Position(LedgerId(self.ledger_id), EntryId(max(next_, 0)))
