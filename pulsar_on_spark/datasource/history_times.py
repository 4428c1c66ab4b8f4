"""The arguments of `history()` that choose messages by time, exact for every year of a `datetime`."""

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
    """The times of a call of `history()` in microseconds since 1970; None for no limit.

    Attributes:
        starting: The publish time before which messages are left out.
        ending: The publish time from which on messages are left out.
        at: The time as of which the topic is shown.
    """

    starting: int | None
    ending: int | None
    at: int | None

    @classmethod
    def of(cls, starting_time: datetime | None, ending_time: datetime | None, at_time: datetime | None) -> Times:
        """Return the times of the arguments, None for None. A time without a time zone is in the zone of this process.

        Raises:
            InvalidArgumentError: an argument is not a `datetime`, or has no time zone and is so close to the first or
                last year of a `datetime` that it cannot be converted to UTC.
        """
        return cls(
            _microseconds("starting_time", starting_time),
            _microseconds("ending_time", ending_time),
            _microseconds("at_time", at_time),
        )

    @property
    def needed(self) -> list[str]:
        """The names of the columns that `between` needs: the publish time, or none without `starting` and `ending`."""
        return [] if self.starting is None and self.ending is None else [PUBLISH_TIME]

    def between(self, frame: DataFrame) -> DataFrame:
        """Return the messages that were published from `starting` on and before `ending`."""
        if self.starting is not None:
            frame = frame.where(functions.col(PUBLISH_TIME) >= timestamp(self.starting))
        return frame if self.ending is None else frame.where(functions.col(PUBLISH_TIME) < timestamp(self.ending))


def timestamp(microseconds: int) -> Column:
    """Return microseconds since 1970 as a timestamp literal of Spark.

    Spark would convert a `datetime` before 1582 by the Julian calendar, which is days off.
    """
    return functions.timestamp_micros(functions.lit(microseconds))


def _microseconds(argument: str, time: datetime | None) -> int | None:
    """Return a time in microseconds since 1970; None for None. `argument` names the time in errors."""
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise InvalidArgumentError(f"Argument {argument} is {time!r}: give a datetime.datetime.")
    try:
        zoned = time if time.tzinfo else time.astimezone()
    except (OverflowError, ValueError) as error:  # it would be in the year 0 or 10000
        raise InvalidArgumentError(f"Argument {argument} is {time!r}: give it a time zone by tzinfo.") from error
    return (zoned - _EPOCH) // timedelta(microseconds=1)
