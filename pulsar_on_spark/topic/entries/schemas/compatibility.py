"""Pulsar's compatibility strategies: the check of a new schema against earlier ones. Pure.

| strategy | a new schema | compared with |
|---|---|---|
| BACKWARD | can read values of the old schema | the latest version |
| FORWARD | writes values that the old schema can read | the latest version |
| FULL | does both | the latest version |
| ..._TRANSITIVE | does the same | every version |
| ALWAYS_COMPATIBLE | is accepted, even of another type | nothing |
| ALWAYS_INCOMPATIBLE | is refused | - |

Schemas based on Avro are compared by Avro's rules. A KEY_VALUE schema is compatible if its key and its value are, a
PROTOBUF_NATIVE schema if its root message has the same name. Each other type has only one schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final

from pulsar_on_spark.model.errors import IncompatibleSchemaError, InvalidArgumentError
from pulsar_on_spark.topic.entries.schemas.avro import Steps, parse_avro, unreadable
from pulsar_on_spark.topic.entries.schemas.schema import AVRO_BASED, TopicSchema

_SHOWN: Final = 3
"""Maximum number of differences that an error names."""


class Strategy(Enum):
    """Pulsar's SchemaCompatibilityStrategy."""

    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @classmethod
    def parse(cls, name: str) -> Strategy:
        """Return a strategy by its name.

        Raises:
            InvalidArgumentError: there is no strategy of that name.
        """
        try:
            return cls(name.upper())
        except ValueError as error:
            names = ", ".join(strategy.value for strategy in cls)
            raise InvalidArgumentError(f"Schema compatibility strategy {name!r} is not known: give {names}.") from error

    @property
    def is_transitive(self) -> bool:
        """True if the new schema is compared with every version, False if only with the latest."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def reads_old(self) -> bool:
        """True if the new schema must read values of older schemas."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def is_read_by_old(self) -> bool:
        """True if consumers with an older schema must be able to read values of the new schema."""
        return self.value.startswith(("FORWARD", "FULL"))


def check_producer(topic: str, new: TopicSchema, versions: Mapping[int, TopicSchema], strategy: Strategy) -> None:
    """Refuse a new schema that is not compatible with the existing versions.

    Args:
        topic: The topic's name, for the error.
        new: A well-formed schema that differs from all versions.
        versions: The schemas by version number, in order.
        strategy: The required compatibility.

    Raises:
        IncompatibleSchemaError: the schema is not compatible, and the error names the differing fields, the version and
            the direction; or the comparison takes too many steps.
    """
    if not versions or strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchemaError(
            f"Topic {topic} accepts no other schema (its compatibility strategy is {strategy.value}): use its schema, "
            "or change the strategy."
        )
    _check(topic, new, versions, strategy, strategy.reads_old, strategy.is_read_by_old)


def check_consumer(topic: str, reader: TopicSchema, versions: Mapping[int, TopicSchema], strategy: Strategy) -> None:
    """Refuse a consumer's schema that cannot read the written messages (Pulsar's `checkConsumerCompatibility`).

    Under BACKWARD_TRANSITIVE and FULL_TRANSITIVE the schema must read every version, otherwise only the latest one.
    Under ALWAYS_COMPATIBLE any schema is accepted.

    Raises:
        IncompatibleSchemaError: the schema cannot read the messages, and the error names the differing fields; or the
            comparison takes too many steps.
    """
    identity = reader.identity()
    if strategy is not Strategy.ALWAYS_COMPATIBLE and all(each.identity() != identity for each in versions.values()):
        transitive = strategy in (Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE)
        required = Strategy.BACKWARD_TRANSITIVE if transitive else Strategy.BACKWARD
        _check(topic, reader, versions, required, reads_old=True, is_read_by_old=False)


def differences(writer: TopicSchema, reader: TopicSchema, steps: Steps) -> list[str]:
    """Return the reasons why `reader` cannot read values of `writer`, one clause for each field; empty if it can.

    Raises:
        IncompatibleSchemaError: the comparison takes more than `steps`.
    """
    if writer.type != reader.type:
        return [f"its type is {writer.type}, not {reader.type}"]
    if writer.type in AVRO_BASED:
        return unreadable(parse_avro(writer.data), parse_avro(reader.data), steps)
    if writer.type == "KEY_VALUE":
        parts = zip(("key", "value"), writer.key_and_value(), reader.key_and_value(), strict=True)
        return [f"in the {part}, {text}" for part, old, new in parts for text in differences(old, new, steps)]
    if writer.type == "PROTOBUF_NATIVE":
        names = [_root_message(schema.data) for schema in (writer, reader)]
        return [] if names[0] == names[1] else [f"its root message is {names[0]}, not {names[1]}"]
    return [] if writer.data == reader.data else [f"schemas of type {writer.type} cannot change"]


def _check(
    topic: str,
    new: TopicSchema,
    versions: Mapping[int, TopicSchema],
    strategy: Strategy,
    reads_old: bool,
    is_read_by_old: bool,
) -> None:
    steps = Steps()
    numbers: Sequence[int] = list(versions) if strategy.is_transitive else list(versions)[-1:]
    for number in numbers:
        old = versions[number]
        backward = differences(old, new, steps) if reads_old else []
        forward = differences(new, old, steps) if is_read_by_old else []
        for direction, problems in (
            (f"it cannot read values of version {number}", backward),
            (f"version {number} cannot read its values", forward),
        ):
            if problems:
                more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
                raise IncompatibleSchemaError(
                    f"The schema is not compatible with topic {topic} ({strategy.value}), because {direction}: "
                    f"{'; '.join(problems[:_SHOWN])}{more}."
                )


@lru_cache(maxsize=8)
def _root_message(text: str) -> str:
    try:
        return str(json.loads(text)["rootMessageTypeName"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidArgumentError(
            "The PROTOBUF_NATIVE schema has no rootMessageTypeName: use the schema that an official client makes."
        ) from error
