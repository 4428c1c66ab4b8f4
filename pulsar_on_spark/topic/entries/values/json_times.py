"""Times and dates in JSON text: conversion of Spark's lenient ISO 8601 to Arrow, and back.

Arrow reads a whole column at once if all its texts have a common form; otherwise the column is read text by text.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

_FORM = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})"
    r"(?:[T ](?P<rest>.*))?)?)?"
)
_CLOCK = re.compile(
    r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,9}))?)?(?P<zone>.*)"
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?P<hours>\d{1,2}):?(?P<minutes>\d{2})?(?::?(?P<seconds>\d{2}))?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def parse_times(texts: pa.StringArray, wanted: pa.TimestampType) -> pa.TimestampArray:
    """Parse times, truncated to microseconds.

    Args:
        texts: ISO 8601 in the forms that Spark accepts: `T` or a blank between date and time, last parts left out, one
            or two digits for a part, any zone.
        wanted: `timestamp(us)` with a zone for an instant (UTC if the text has no zone), or without a zone for a local
            time (a zone in the text is an error).

    Raises:
        ArrowInvalid: a text is not a time, or its year is above 9999.
    """
    local = pa.timestamp("us")
    try:
        if wanted.tz is None:
            return texts.cast(local)
        return texts.cast(wanted)
    except pa.ArrowInvalid:
        pass
    if wanted.tz is not None:
        try:
            return texts.cast(local).cast(pa.int64()).cast(wanted)
        except pa.ArrowInvalid:
            pass
    moments = [None if text is None else _moment(text, is_instant=wanted.tz is not None) for text in texts.to_pylist()]
    return pa.array(moments, pa.int64()).cast(wanted)


def parse_dates(texts: pa.StringArray) -> pa.Date32Array:
    """Parse dates, ignoring a time after the date.

    Raises:
        ArrowInvalid: a text is not a date.
    """
    try:
        return texts.cast(pa.date32())
    except pa.ArrowInvalid:
        return pa.array([None if text is None else _date(text)[0] for text in texts.to_pylist()], pa.date32())


def times_text(times: pa.TimestampArray | pa.Date32Array) -> pa.StringArray:
    """Return ISO 8601 texts: `2013-01-01T05:15:00.000Z`, with six digits for microseconds, no `Z` for local times."""
    if pa.types.is_date(times.type):
        return times.cast(pa.string())
    suffix = "" if times.type.tz is None else "Z"
    local = times.cast(pa.int64()).cast(pa.timestamp("us"))
    whole = pc.equal(local.cast(pa.timestamp("ms"), safe=False).cast(pa.timestamp("us")), local)
    short = pc.strftime(pc.floor_temporal(local, unit="millisecond").cast(pa.timestamp("ms")), "%Y-%m-%dT%H:%M:%S")
    exact = pc.strftime(local, "%Y-%m-%dT%H:%M:%S")
    return pc.binary_join_element_wise(pc.if_else(whole, short, exact), suffix, "")


def _date(text: str) -> tuple[date, str]:
    """Return the date at the text's beginning, and the text after it."""
    match = _FORM.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        return date(int(match["year"]), int(match["month"] or 1), int(match["day"] or 1)), match["rest"] or ""
    except ValueError:
        raise pa.ArrowInvalid(f"{text[:80]!r} is not a date") from None


def _moment(text: str, *, is_instant: bool) -> int:
    """Parse a time as microseconds since 1970."""
    day, rest = _date(text)
    try:
        match = _CLOCK.fullmatch(rest) if rest else None
        if match is None:
            if rest:
                raise ValueError
            hour = minute = second = fraction = 0
            zone = ""
        else:
            hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
            fraction = int((match["fraction"] or "").ljust(6, "0")[:6])
            zone = match["zone"].strip()
        if zone and not is_instant:
            raise ValueError
        offset = _zone(zone or "UTC") if is_instant else UTC
        moment = datetime(day.year, day.month, day.day, hour, minute, second, fraction, offset)
        return (moment - _EPOCH) // _MICROSECOND
    except (ValueError, ZoneInfoNotFoundError, OverflowError):
        raise pa.ArrowInvalid(f"{text[:80]!r} is not a time") from None


def _zone(name: str) -> tzinfo:
    if name in ("Z", "UTC"):
        return UTC
    if (match := _OFFSET.fullmatch(name)) is not None:
        offset = timedelta(
            hours=int(match["hours"]), minutes=int(match["minutes"] or 0), seconds=int(match["seconds"] or 0)
        )
        return timezone(-offset if match["sign"] == "-" else offset)
    return ZoneInfo(name)
