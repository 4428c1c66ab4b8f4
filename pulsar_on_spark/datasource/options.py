"""The parsing and checking of the options of `format("pulsarpy")`.

docs/options.md describes the options for users; the module `option_names` has their names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from pulsar_on_spark.datasource.option_names import GivenOptions, names_in
from pulsar_on_spark.datasource.worker_process import session_folder
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import check_subscription_name
from pulsar_on_spark.model.root_path import ROOT_VARIABLE
from pulsar_on_spark.storage.root_place import RootPlace, parse_place

SubscriptionType = Literal["Exclusive", "Failover", "Shared", "Key_Shared"]
HashingScheme = Literal["JavaStringHash", "Murmur3_32Hash"]
Mode = Literal["PERMISSIVE", "FAILFAST"]
ValueFormat = Literal["json", "avro"]


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics of a read, given either by their names or by a pattern.

    Attributes:
        names: The names, short or full; empty with a pattern.
        pattern: The regular expression of `topicsPattern`; None with names.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Typed:
    """The format and schema of typed values, by which reads decode `value` into columns and writes encode it.

    Attributes:
        format: Option `valueFormat`; None if it is not given, and then the topic's schema counts.
        schema: Option `valueSchema`; None if it is not given.
        mode: Option `mode`: the treatment of values that cannot be decoded.
    """

    format: ValueFormat | None
    schema: str | None
    mode: Mode


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, which docs/options.md explains. None means that an option is not given.

    Attributes:
        root: The root's folder or URL.
        topics: The topics.
        starting: Option `startingOffsets`.
        ending: Option `endingOffsets`.
        starting_time_ms: Option `startingTime`, in milliseconds since 1970.
        ending_time_ms: Option `endingTime`, in milliseconds since 1970.
        time_strategy: Option `startingOffsetsByTimestampStrategy`.
        subscription: Option `subscription`.
        subscription_prefix: Option `subscriptionPrefix`, which excludes `subscription`.
        subscription_type: Option `subscriptionType`.
        initial_position: Option `subscriptionInitialPosition`.
        consumer_name: Option `consumerName`.
        lease_duration_s: Option `leaseDuration`, in seconds.
        max_messages: Option `maxMessagesPerTrigger`; None for no limit.
        max_bytes: Option `maxBytesPerTrigger`, in key and value bytes; None for no limit.
        min_messages: Option `minOffsetsPerTrigger`; None to wait for no number of messages.
        max_delay_s: Option `maxTriggerDelay`, in seconds.
        min_partitions: Option `minPartitions`; None for a number by size and cores.
        max_records: Option `maxRecordsPerPartition`; None for no limit.
        fail_on_data_loss: Option `failOnDataLoss`.
        include_metadata: Option `includeMetadata`.
        columns: Option `columns`; None for the default columns.
        field_prefix: Option `fieldPrefix`.
        typed: The options of typed values.
        allow_different_schemas: Option `allowDifferentTopicSchemas`.
        read_compacted: Option `readCompacted`.
    """

    root: RootPlace
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
    field_prefix: str
    typed: Typed
    allow_different_schemas: bool
    read_compacted: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write, which docs/options.md explains. None means that an option is not given.

    Attributes:
        root: The root's folder or URL.
        topic: Option `topic`; None if each row names its topic.
        hashing_scheme: Option `hashingScheme`.
        txn_app_id: Option `txnAppId`; given only with `txn_version`.
        txn_version: Option `txnVersion`; given only with `txn_app_id`.
        typed: The options of typed values.
        register_schema: Option `registerSchema`.
        checkpoint_location: Option `checkpointLocation`.
    """

    root: RootPlace
    topic: str | None
    hashing_scheme: HashingScheme
    txn_app_id: str | None
    txn_version: int | None
    typed: Typed
    register_schema: bool
    checkpoint_location: str | None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the parsed options of a read.

    Raises:
        InvalidArgumentError: an option is invalid; the error names the option, its value and valid values.
    """
    options = GivenOptions(given)
    subscription = options.text("subscription")
    prefix = options.text("subscriptionPrefix")
    if subscription is not None and prefix is not None:
        raise InvalidArgumentError("Options subscription and subscriptionPrefix exclude each other: give one of them.")
    for name in (subscription, prefix):
        if name is not None:
            check_subscription_name(name)
    if subscription is None and prefix is None:
        for name in ("subscriptionType", "subscriptionInitialPosition", "consumerName"):
            options.only(name, "it needs option subscription or subscriptionPrefix, and neither is given")
    if options.text("startingOffsets") is not None and options.text("startingTime") is not None:
        raise InvalidArgumentError("Options startingOffsets and startingTime exclude each other: give one of them.")
    if options.text("endingOffsets") is not None and options.text("endingTime") is not None:
        raise InvalidArgumentError("Options endingOffsets and endingTime exclude each other: give one of them.")
    return ReadOptions(
        root=_root(options),
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
        field_prefix=options.text("fieldPrefix") or "",
        typed=_typed(options),
        allow_different_schemas=options.flag("allowDifferentTopicSchemas", False),
        read_compacted=options.flag("readCompacted", False),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the parsed options of a write.

    Raises:
        InvalidArgumentError: an option is invalid; the error names the option, its value and valid values.
    """
    options = GivenOptions(given)
    for name in ("topics", "topicsPattern"):
        options.only(name, "a write goes to the topic of option topic, or of the column __topic")
    txn_app_id, txn_version = options.text("txnAppId"), options.number("txnVersion", 0)
    if (txn_app_id is None) != (txn_version is None):
        raise InvalidArgumentError("Options txnAppId and txnVersion belong together: give both or neither.")
    typed, register_schema = _typed(options), options.flag("registerSchema", False)
    if register_schema and (typed.format is None or options.text("topic") is None):
        raise InvalidArgumentError(
            "Option registerSchema needs the options topic, valueFormat and valueSchema: give them too, or leave out "
            "registerSchema."
        )
    return WriteOptions(
        root=_root(options),
        topic=options.text("topic"),
        hashing_scheme=options.choice("hashingScheme", ("JavaStringHash", "Murmur3_32Hash")) or "JavaStringHash",
        txn_app_id=txn_app_id,
        txn_version=txn_version,
        typed=typed,
        register_schema=register_schema,
        checkpoint_location=options.text("checkpointLocation"),
    )


def _root(options: GivenOptions) -> RootPlace:
    value = options.text("path") or os.environ.get(ROOT_VARIABLE)
    if not value:
        raise InvalidArgumentError(
            "No root is given: use .load(root) or .save(root), option path, or the environment variable "
            f"{ROOT_VARIABLE}."
        )
    if value.startswith(("pulsar://", "pulsar+ssl://", "http://", "https://")):
        raise InvalidArgumentError(
            f"Option path (or service.url) is {value}, a broker's URL, but Spark reads and writes the root itself: "
            "give the root's path."
        )
    root = parse_place(value, options.text("storageProfile") or "")
    folder = session_folder()
    if folder is not None and isinstance(root, Path) and root.is_relative_to(folder):
        raise InvalidArgumentError(
            f"Option path is {value}, which is in {folder}, and Spark deletes this folder when the session ends: give "
            "the root's absolute path on the server, because under Spark Connect relative paths begin in this folder."
        )
    return root


def _selection(options: GivenOptions) -> TopicSelection:
    options_set = [name for name in ("topic", "topics", "topicsPattern") if options.text(name) is not None]
    if len(options_set) != 1:
        listed = " and ".join(options_set) if options_set else "none"
        raise InvalidArgumentError(
            f"Exactly one of the options topic, topics and topicsPattern is needed: {listed} given."
        )
    value = options.text(options_set[0]) or ""
    if options_set[0] == "topicsPattern":
        return TopicSelection(pattern=value)
    names = tuple(names_in(value)) if options_set[0] == "topics" else (value,)
    if not all(names):
        raise options.bad(
            options_set[0],
            "give the name of a topic" + ("s, separated by commas" if options_set[0] == "topics" else ""),
        )
    return TopicSelection(names=names)


def _typed(options: GivenOptions) -> Typed:
    format_: ValueFormat | None = options.choice("valueFormat", ("json", "avro"))
    schema = options.text("valueSchema")
    if (format_ is None) != (schema is None):
        raise InvalidArgumentError("Options valueFormat and valueSchema belong together: give both or neither.")
    return Typed(format_, schema, options.choice("mode", ("PERMISSIVE", "FAILFAST")) or "PERMISSIVE")
