"""The options of `format("pulsarpy")`: names, aliases, defaults and checks, in one place.

Spark hands options over with lower-cased names. Names follow pulsar-spark, with Kafka's as aliases. `pulsar.*`
options configure a client that isn't there: they are accepted with one warning. Options of features still to come,
and whatever would relax durability, are refused by name.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import check_subscription_name
from pulsar_on_spark.topic.root import ROOT_VARIABLE, local_path

log = logging.getLogger(__name__)

_ALIASES = {
    "service.url": "path",
    "serviceUrl": "path",
    "subscribe": "topics",
    "subscribePattern": "topicsPattern",
    "predefinedSubscription": "subscription",
    "startingTimestamp": "startingTime",
    "endingTimestamp": "endingTime",
    "maxOffsetsPerTrigger": "maxMessagesPerTrigger",
    "includeHeaders": "includeMetadata",
}
_READ = ["path", "topic", "topics", "topicsPattern", "startingOffsets", "endingOffsets", "startingTime", "endingTime", "startingOffsetsByTimestampStrategy", "subscription", "subscriptionPrefix", "subscriptionType", "subscriptionInitialPosition", "consumerName", "leaseDuration", "maxMessagesPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeMetadata", "columns", "valueFormat", "valueSchema", "mode", "allowDifferentTopicSchemas", "waitingForNonExistedTopic", "pollTimeoutMs"]
_WRITE = ["path", "topic", "hashingScheme", "txnAppId", "txnVersion", "valueFormat", "valueSchema", "checkpointLocation"]
_WITHOUT_EFFECT = ("waitingForNonExistedTopic", "pollTimeoutMs")
"""pulsar-spark's options that wait for a broker: accepted, and there is nothing to wait for."""
_REFUSED = {
    "readCompacted": "topic compaction is still to come",
    "fsync": "every write is synced to disk before it is committed",
    "compressionType": "segments are always zstd",
    "ensembleSize": "the quorum is the root's: see `pulsarpy init --quorum`",
    "writeQuorum": "the quorum is the root's: see `pulsarpy init --quorum`",
    "ackQuorum": "the quorum is the root's: see `pulsarpy init --quorum`",
}
_KNOWN = {name.lower(): name for name in (*_READ, *_WRITE, *_ALIASES, *_REFUSED)}

SubscriptionType = Literal["Exclusive", "Failover", "Shared", "Key_Shared"]
HashingScheme = Literal["JavaStringHash", "Murmur3_32Hash"]
Mode = Literal["PERMISSIVE", "FAILFAST"]
ValueFormat = Literal["json", "avro"]
_C = TypeVar("_C", bound=str)

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_WORDS = {"millisecond": "ms", "sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d"}


class Options:
    """The options of one read or write, by their proper names; values are looked up with a check."""

    def __init__(self, given: Mapping[str, str], direction: Literal["read", "write"]) -> None:
        """Sort out names.

        Raises:
            InvalidArgumentError: an option and its alias disagree, or an option is refused.
        """
        self._values: dict[str, str] = {}
        self._direction = direction
        pass_through = []
        for raw, value in given.items():
            known = _KNOWN.get(raw.lower())
            if known is None:
                if raw.lower().startswith("pulsar."):
                    pass_through.append(raw)
                else:
                    self._warn_unknown(raw)
            elif known in _REFUSED:
                self._refuse(known, value)
            else:
                name = _ALIASES.get(known, known)
                if self._values.setdefault(name, value) != value:
                    raise InvalidArgumentError(
                        f"Options {name} and {known} mean the same and differ: give one of them."
                    )
        if pass_through:
            log.warning(
                "Options %s configure a Pulsar client and have no effect here.", ", ".join(sorted(pass_through))
            )

    def _refuse(self, name: str, value: str) -> None:
        if name == "fsync" and value.strip().lower() == "true":
            return
        raise InvalidArgumentError(f"Option {name} is not supported: {_REFUSED[name]}; leave it out.")

    def _warn_unknown(self, raw: str) -> None:
        close = difflib.get_close_matches(raw.lower(), _KNOWN, n=1)
        hint = f" Did you mean {_KNOWN[close[0]]}?" if close else ""
        log.warning("Option %s is unknown to format pulsarpy and has no effect.%s", raw, hint)

    def text(self, name: str) -> str | None:
        """The option's text, None where it isn't given."""
        return self._values.get(name)

    def choice(self, name: str, choices: tuple[_C, ...]) -> _C | None:
        """One of `choices`, whatever its case."""
        value = self.text(name)
        if value is None:
            return None
        found = {choice.lower(): choice for choice in choices}.get(value.strip().lower())
        if found is None:
            raise self.bad(name, f"give one of {', '.join(choices)}")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.choice(name, ("true", "false"))
        return default if value is None else value == "true"

    def number(self, name: str, minimum: int = 1) -> int | None:
        """A whole number from `minimum` on."""
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"\s*\d{1,18}\s*", value) or int(value) < minimum:
            raise self.bad(name, f"give a whole number from {minimum} on")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """A length of time such as `10s`, `500ms` or `2 minutes`; a bare number counts seconds."""
        value = self.text(name)
        if value is None:
            return default
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower())
        unit = (match.group(2) or "s") if match else ""
        unit = _UNIT_WORDS.get(unit.removesuffix("s"), unit)
        if match is None or unit not in _UNITS_S or float(match.group(1)) <= 0:
            raise self.bad(name, "give a length of time such as 10s, 500ms or 2 minutes")
        return float(match.group(1)) * _UNITS_S[unit]

    def bad(self, name: str, remedy: str) -> InvalidArgumentError:
        """The error for an option whose value can't be used."""
        return InvalidArgumentError(f"Option {name} has the value {self.text(name)!r}: {remedy}.")

    def only(self, name: str, why: str) -> None:
        """Refuse an option that has no meaning here."""
        if name in self._values:
            raise InvalidArgumentError(f"Option {name} is not possible here: {why}.")

    @property
    def root(self) -> Path:
        """The root: `.load(root)`, option `path`, or the environment variable PULSARPY_ROOT."""
        value = self.text("path") or os.environ.get(ROOT_VARIABLE)
        if not value:
            raise InvalidArgumentError(
                f"No root is given: use .load(root) or .save(root), option path, or the environment variable {ROOT_VARIABLE}."
            )
        if value.startswith(("pulsar://", "pulsar+ssl://", "http://", "https://")):
            raise InvalidArgumentError(
                f"Option service.url names a broker ({value}), which is still to come: give the path of the root."
            )
        return local_path(value)


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which topics a read is about: names, or a pattern."""

    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Typed:
    """Typed values: how `value` is decoded into columns, or packed from them."""

    format: ValueFormat | None
    schema: str | None
    mode: Mode


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for; see docs/options.md."""

    root: Path
    topics: TopicSelection
    starting: str | None
    ending: str | None
    starting_time_ms: int | None
    ending_time_ms: int | None
    time_strategy: Literal["error", "latest"]
    subscription: str | None
    subscription_prefix: str | None
    subscription_type: SubscriptionType
    initial_position: Literal["earliest", "latest"] | None
    consumer_name: str | None
    lease_duration_s: float
    max_messages: int | None
    max_bytes: int | None
    min_messages: int | None
    max_delay_s: float
    min_partitions: int | None
    max_records: int | None
    fail_on_data_loss: bool
    include_metadata: bool
    columns: str | None
    typed: Typed
    allow_different_schemas: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was asked for; see docs/options.md."""

    root: Path
    topic: str | None
    hashing_scheme: HashingScheme
    txn_app_id: str | None
    txn_version: int | None
    typed: Typed
    checkpoint_location: str | None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read.

    Raises:
        InvalidArgumentError: naming the option, its value and what would be right.
    """
    options = Options(given, "read")
    subscription = options.text("subscription")
    prefix = options.text("subscriptionPrefix")
    if subscription is not None and prefix is not None:
        raise InvalidArgumentError("Options subscription and subscriptionPrefix exclude each other: give one of them.")
    for name in (subscription, prefix):
        if name is not None:
            check_subscription_name(name)
    if subscription is None and prefix is None:
        for name in ("subscriptionType", "subscriptionInitialPosition", "consumerName"):
            options.only(name, "it belongs to a subscription, and option subscription is not given")
    if options.text("startingOffsets") is not None and options.text("startingTime") is not None:
        raise InvalidArgumentError("Options startingOffsets and startingTime exclude each other: give one of them.")
    if options.text("endingOffsets") is not None and options.text("endingTime") is not None:
        raise InvalidArgumentError("Options endingOffsets and endingTime exclude each other: give one of them.")
    return ReadOptions(
        root=options.root,
        topics=_selection(options),
        starting=options.text("startingOffsets"),
        ending=options.text("endingOffsets"),
        starting_time_ms=options.number("startingTime", 0),
        ending_time_ms=options.number("endingTime", 0),
        time_strategy=options.choice("startingOffsetsByTimestampStrategy", ("error", "latest")) or "error",
        subscription=subscription,
        subscription_prefix=prefix,
        subscription_type=options.choice("subscriptionType", ("Exclusive", "Failover", "Shared", "Key_Shared"))
        or "Exclusive",
        initial_position=cast(
            "Literal['earliest', 'latest'] | None",
            options.choice("subscriptionInitialPosition", ("earliest", "latest")),
        ),
        consumer_name=options.text("consumerName"),
        lease_duration_s=options.seconds("leaseDuration", 10.0),
        max_messages=options.number("maxMessagesPerTrigger"),
        max_bytes=options.number("maxBytesPerTrigger"),
        min_messages=options.number("minOffsetsPerTrigger"),
        max_delay_s=options.seconds("maxTriggerDelay", 900.0),
        min_partitions=options.number("minPartitions"),
        max_records=options.number("maxRecordsPerPartition"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_metadata=options.flag("includeMetadata", False),
        columns=options.text("columns"),
        typed=_typed(options),
        allow_different_schemas=options.flag("allowDifferentTopicSchemas", False),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write.

    Raises:
        InvalidArgumentError: naming the option, its value and what would be right.
    """
    options = Options(given, "write")
    for name in ("topics", "topicsPattern"):
        options.only(name, "a write goes to the topic of option topic, or of the column __topic")
    txn_app_id, txn_version = options.text("txnAppId"), options.number("txnVersion", 0)
    if (txn_app_id is None) != (txn_version is None):
        raise InvalidArgumentError("Options txnAppId and txnVersion belong together: give both or neither.")
    return WriteOptions(
        root=options.root,
        topic=options.text("topic"),
        hashing_scheme=options.choice("hashingScheme", ("JavaStringHash", "Murmur3_32Hash")) or "JavaStringHash",
        txn_app_id=txn_app_id,
        txn_version=txn_version,
        typed=_typed(options),
        checkpoint_location=options.text("checkpointLocation"),
    )


def _selection(options: Options) -> TopicSelection:
    given = [name for name in ("topic", "topics", "topicsPattern") if options.text(name) is not None]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        raise InvalidArgumentError(
            f"Exactly one of the options topic, topics and topicsPattern is needed: {found} given."
        )
    value = options.text(given[0]) or ""
    if given[0] == "topicsPattern":
        return TopicSelection(pattern=value)
    names = tuple(name.strip() for name in value.split(",")) if given[0] == "topics" else (value,)
    if not all(names):
        raise options.bad(
            given[0], "give the name of a topic" + ("s, separated by commas" if given[0] == "topics" else "")
        )
    return TopicSelection(names=names)


def _typed(options: Options) -> Typed:
    format_ = options.choice("valueFormat", ("json", "avro"))
    schema = options.text("valueSchema")
    if (format_ is None) != (schema is None):
        raise InvalidArgumentError("Options valueFormat and valueSchema belong together: give both or neither.")
    return Typed(format_, schema, options.choice("mode", ("PERMISSIVE", "FAILFAST")) or "PERMISSIVE")
