"""The times that choose messages in `history()`, exact for all years of Python."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, functions

from pulsar_on_spark.model.errors import InvalidArgumentError

PUBLISH_TIME: Final = "__publishTime"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Times:
    """Times in microseconds since 1970; None for no limit.

    Attributes:
        starting: The time before which messages are left out.
        ending: The time from which on messages are left out.
        at: The time as of which the topic is shown.
    """

    starting: int | None
    ending: int | None
    at: int | None

    @classmethod
    def of(cls, starting_time: datetime | None, ending_time: datetime | None, at_time: datetime | None) -> Times:
        """Return the times of the arguments; one without a zone is in the zone of the process.

        Raises:
            InvalidArgumentError: an argument is not a `datetime`, or without a zone although its year is the first or
                last one.
        """
        return cls(
            _microseconds("starting_time", starting_time),
            _microseconds("ending_time", ending_time),
            _microseconds("at_time", at_time),
        )

    @property
    def needed(self) -> list[str]:
        """The columns that `between` needs."""
        return [] if self.starting is None and self.ending is None else [PUBLISH_TIME]

    def between(self, frame: DataFrame) -> DataFrame:
        """Return the messages that were published from `starting` on and before `ending`."""
        if self.starting is not None:
            frame = frame.where(functions.col(PUBLISH_TIME) >= timestamp(self.starting))
        return frame if self.ending is None else frame.where(functions.col(PUBLISH_TIME) < timestamp(self.ending))


def timestamp(microseconds: int) -> Column:
    """Return a time as a literal. One made of a `datetime` would be days off before 1582, by the Julian calendar."""
    return functions.timestamp_micros(functions.lit(microseconds))


def _microseconds(argument: str, time: datetime | None) -> int | None:
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise InvalidArgumentError(f"Argument {argument} is {time!r}: give a datetime.datetime.")
    try:
        zoned = time if time.tzinfo else time.astimezone()
    except (OverflowError, ValueError) as error:  # it would be in the year 0 or 10000
        raise InvalidArgumentError(f"Argument {argument} is {time!r}: give it a zone with tzinfo.") from error
    return (zoned - _EPOCH) // timedelta(microseconds=1)
