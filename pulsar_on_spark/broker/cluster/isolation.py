"""Isolation policies, which restrict the brokers that may serve a namespace.

The rules are Pulsar's (`LoadManagerShared.applyNamespacePolicies`): a namespace with a policy is served by the policy's
primary brokers, and also by its secondary ones while fewer than `min_limit` primary ones are registered. Other
namespaces are served by the brokers that are primary in no policy.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import JsonValue

from pulsar_on_spark.metadata.records import BrokerRecord, IsolationRecord
from pulsar_on_spark.metadata.state import RecentView
from pulsar_on_spark.model.errors import InvalidArgumentError

log = logging.getLogger(__name__)


class Isolation(NamedTuple):
    """An isolation policy.

    Attributes:
        name: The policy's name.
        namespaces: Regular expressions of the policy's namespaces.
        primary: Regular expressions of the primary brokers: they match a broker's host or its id `host:port`.
        secondary: Regular expressions of the secondary brokers, which match in the same way.
        min_limit: The number of primary brokers below which the secondary ones serve too.
    """

    name: str
    namespaces: Sequence[str]
    primary: Sequence[str]
    secondary: Sequence[str]
    min_limit: int

    def is_primary(self, broker: BrokerRecord) -> bool:
        """Return True if a broker is one of the policy's primary brokers."""
        return _matches_any(self.primary, _names(broker))

    def is_secondary(self, broker: BrokerRecord) -> bool:
        """Return True if a broker is one of the policy's secondary brokers, and not a primary one."""
        return not self.is_primary(broker) and _matches_any(self.secondary, _names(broker))


def isolations(view: RecentView) -> list[Isolation]:
    """Return all isolation policies, sorted by name."""
    return [_parsed(record) for record in sorted(view.all(IsolationRecord), key=lambda record: record.name)]


def allowed_brokers(
    policies: Iterable[Isolation], namespace: str, brokers: Collection[BrokerRecord]
) -> list[BrokerRecord]:
    """Return the brokers that may serve a namespace. If several policies match it, the first one by name counts.

    Args:
        policies: All isolation policies, sorted by name.
        namespace: `tenant/namespace`.
        brokers: The registered brokers.
    """
    policies = list(policies)
    policy = next((each for each in policies if _matches_any(each.namespaces, [namespace])), None)
    if policy is None:
        return [broker for broker in brokers if not any(each.is_primary(broker) for each in policies)]
    primary = [broker for broker in brokers if policy.is_primary(broker)]
    if len(primary) >= policy.min_limit:
        return primary
    return primary + [broker for broker in brokers if policy.is_secondary(broker)]


def check_patterns(patterns: Iterable[str]) -> None:
    """Check that the patterns of an isolation policy are regular expressions of RE2.

    Raises:
        InvalidArgumentError: a pattern cannot be compiled.
    """
    for pattern in patterns:
        try:
            _search(pattern, "")
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(
                f"The isolation policy's pattern {pattern!r} is not a regular expression of RE2: {error}."
            ) from error


def _parsed(record: IsolationRecord) -> Isolation:
    failover = record.policy.get("auto_failover_policy")
    parameters = failover.get("parameters") if isinstance(failover, Mapping) else None
    limit = parameters.get("min_limit") if isinstance(parameters, Mapping) else None
    return Isolation(
        record.name,
        _texts(record.policy.get("namespaces")),
        _texts(record.policy.get("primary")),
        _texts(record.policy.get("secondary")),
        int(limit) if isinstance(limit, str) and limit.isdecimal() else 0,
    )


def _texts(value: JsonValue) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _names(broker: BrokerRecord) -> list[str]:
    return [broker.broker, broker.broker.rpartition(":")[0]]


def _matches_any(patterns: Sequence[str], texts: Sequence[str]) -> bool:
    return any(_matches(pattern, text) for pattern in patterns for text in texts)


@lru_cache(maxsize=10_000)
def _matches(pattern: str, text: str) -> bool:
    """Return True if a pattern matches the whole text; in linear time by RE2, as a pattern can make `re` run for hours.

    An invalid pattern matches nothing; older versions stored patterns without checking them.
    """
    try:
        return _search(pattern, text) and _search(rf"\A(?:{pattern})\z", text)
    except pa.ArrowInvalid as error:
        log.warning("%r in an isolation policy is not a regular expression, and matches nothing: %s", pattern, error)
        return False


def _search(pattern: str, text: str) -> bool:
    return bool(pc.match_substring_regex(pa.array([text]), pattern)[0].as_py())
