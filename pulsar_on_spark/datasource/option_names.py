"""The names of `format("pulsarpy")`'s options: aliases, options of reads and of writes, refused options, look-ups.

Spark passes options with lower-case names. The names are those of the connector pulsar-spark; names of Spark's Kafka
source are aliases.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, TypeVar

from pulsar_on_spark.model.errors import InvalidArgumentError

log = logging.getLogger(__name__)

Direction = Literal["read", "write"]

ALIASES = {
    "service.url": "path",
    "serviceUrl": "path",
    "subscribe": "topics",
    "subscribePattern": "topicsPattern",
    "predefinedSubscription": "subscription",
    "subscriptionName": "subscription",
    "startingTimestamp": "startingTime",
    "endingTimestamp": "endingTime",
    "maxOffsetsPerTrigger": "maxMessagesPerTrigger",
    "includeHeaders": "includeMetadata",
}
_BOTH = ("path", "storageProfile", "topic", "valueFormat", "valueSchema")
READ_OPTIONS = (
    *_BOTH,
    *("topics", "topicsPattern", "startingOffsets", "endingOffsets", "startingTime", "endingTime"),
    *("startingOffsetsByTimestampStrategy", "failOnDataLoss", "readCompacted"),
    *("subscription", "subscriptionPrefix", "subscriptionType", "subscriptionInitialPosition"),
    *("consumerName", "leaseDuration"),
    *("maxMessagesPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("minPartitions", "maxRecordsPerPartition", "includeMetadata", "columns", "fieldPrefix", "mode"),
    *("allowDifferentTopicSchemas", "waitingForNonExistedTopic", "pollTimeoutMs"),
)
"""Options of reads. `waitingForNonExistedTopic` and `pollTimeoutMs` are pulsar-spark's, accepted without effect."""
WRITE_OPTIONS = (*_BOTH, "registerSchema", "hashingScheme", "txnAppId", "txnVersion", "checkpointLocation")
_QUORUM = "the root (`pulsarpy init --quorum`) or the policy persistence of a topic or namespace determines it"
REFUSED = {
    "startingOffsetsByTimestamp": "one time for each partition is not supported: use startingTime or startingOffsets",
    "endingOffsetsByTimestamp": "one time for each partition is not supported: use endingTime or endingOffsets",
    "fsync": "every write is synced to disk before it is committed",
    "compressionType": "segments are always zstd",
    "ensembleSize": _QUORUM,
    "writeQuorum": _QUORUM,
    "ackQuorum": _QUORUM,
}
"""Refused options, each with the reason: unsupported features, or durability that a write cannot relax."""
_HARMLESS = {"fsync": "true", "compressionType": "zstd"}
"""Values of refused options that are accepted, because they request the existing behaviour."""
_CLIENT = ("pulsar.", "admin.url", "adminurl")
"""Prefixes of options that configure a Pulsar client, which does not exist here: accepted, with a warning."""

_KNOWN = {name.lower(): name for name in (*READ_OPTIONS, *WRITE_OPTIONS, *ALIASES, *REFUSED)}
_MISTYPED = 0.86
"""Similarity (`difflib`'s ratio) to a known name from which on an unknown name counts as mistyped.

Options of other formats are below this ratio.
"""
_C = TypeVar("_C", bound=str)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_WORDS = {"millisecond": "ms", "sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d"}


class GivenOptions:
    """The options of one read or write, by their proper names (not their aliases).

    The methods `choice`, `flag`, `number` and `seconds` check the value. They raise an InvalidArgumentError that names
    the option, its value and valid values.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        """Store the given options under their proper names.

        Raises:
            InvalidArgumentError: an option is mistyped or refused, or has another value than its alias.
        """
        self._values: dict[str, str] = {}
        for raw, value in given.items():
            proper = _KNOWN.get(raw.lower())
            if proper in REFUSED:
                if _HARMLESS.get(proper) != value.strip().lower():
                    raise InvalidArgumentError(f"Option {proper} is not supported: {REFUSED[proper]}; leave it out.")
            elif proper is not None:
                name = ALIASES.get(proper, proper)
                if self._values.setdefault(name, value) != value:
                    raise InvalidArgumentError(
                        f"Options {name} and {proper} are the same option with different values: give one of them."
                    )
            elif not _is_for_a_client(raw) and (meant := _nearest(raw, _MISTYPED)):
                raise InvalidArgumentError(
                    f"Option {raw} is unknown to format pulsarpy, but similar to a known one: give {meant}, or leave "
                    "it out."
                )

    def text(self, name: str) -> str | None:
        """Return the option's unchecked text; None if it is not given."""
        return self._values.get(name)

    def choice(self, name: str, choices: tuple[_C, ...]) -> _C | None:
        """Return the member of `choices` that equals the option's value, ignoring case; None if it is not given."""
        value = self.text(name)
        if value is None:
            return None
        match = {choice.lower(): choice for choice in choices}.get(value.strip().lower())
        if match is None:
            raise self.bad(name, f"give one of {', '.join(choices)}")
        return match

    def flag(self, name: str, default: bool) -> bool:
        """Return True or False for an option with the value `true` or `false`; `default` if it is not given."""
        value = self.choice(name, ("true", "false"))
        return default if value is None else value == "true"

    def number(self, name: str, minimum: int = 1) -> int | None:
        """Return the option as a whole number of at least `minimum`; None if it is not given."""
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"\s*[0-9]{1,18}\s*", value) or int(value) < minimum:
            raise self.bad(name, f"give a whole number from {minimum} on")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """Return a duration such as `10s`, `500ms` or `2 minutes` in seconds; `default` if the option is not given.

        A number without a unit means seconds.
        """
        value = self.text(name)
        if value is None:
            return default
        match = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([a-z]*)\s*", value.lower())
        unit = (match.group(2) or "s") if match else ""
        unit = unit if unit in _UNITS_S else _UNIT_WORDS.get(unit.removesuffix("s"), unit)
        if match is None or unit not in _UNITS_S or float(match.group(1)) <= 0:
            raise self.bad(name, "give a length of time such as 10s, 500ms or 2 minutes")
        return float(match.group(1)) * _UNITS_S[unit]

    def bad(self, name: str, remedy: str) -> InvalidArgumentError:
        """Return the error for an option whose value cannot be used; `remedy` says which value to give."""
        return InvalidArgumentError(f"Option {name} has the value {self.text(name)!r}: {remedy}.")

    def only(self, name: str, why: str) -> None:
        """Raise InvalidArgumentError, with the reason `why`, if this option is given."""
        if name in self._values:
            raise InvalidArgumentError(f"Option {name} is not possible here, because {why}: leave it out.")


def names_in(value: str) -> list[str]:
    """Return the names in an option's value, which is a JSON list or separates them by commas.

    Names that contain commas need the JSON list.
    """
    with suppress(ValueError):
        names = json.loads(value)
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return names
    return [name.strip() for name in value.split(",")]


def warn_without_effect(given: Mapping[str, str], direction: Direction) -> None:
    """Log a warning for each accepted option that has no effect. The caller calls this once for each read or write."""
    belongs = {name.lower() for name in (READ_OPTIONS if direction == "read" else WRITE_OPTIONS)}
    client = sorted(name for name in given if _is_for_a_client(name))
    if client:
        log.warning("Options %s configure a Pulsar client and have no effect here.", ", ".join(client))
    for raw in sorted(set(given) - set(client)):
        proper = _KNOWN.get(raw.lower())
        if proper is None:
            log.warning("Option %s is unknown to format pulsarpy and has no effect.", raw)
        elif proper not in REFUSED and ALIASES.get(proper, proper).lower() not in belongs:
            log.warning("Option %s has no effect on a %s.", proper, direction)


def _is_for_a_client(name: str) -> bool:
    return name.lower().startswith(_CLIENT)


def _nearest(name: str, ratio: float) -> str | None:
    """Return the known option name that is most similar to `name`; None if its similarity is below `ratio`."""
    close = difflib.get_close_matches(name.lower(), _KNOWN, n=1, cutoff=ratio)
    return _KNOWN[close[0]] if close else None
