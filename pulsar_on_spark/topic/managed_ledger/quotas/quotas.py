"""The check if a topic's backlog exceeds a backlog quota. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pulsar_on_spark.topic.catalog.policies.policies import BacklogQuota, BacklogQuotaPolicy, Policies

EVICTED_TO: Final = 0.9
"""Share of a quota by size to which an eviction reduces the backlog (Pulsar's `BacklogQuotaManager`)."""


@dataclass(frozen=True, slots=True)
class BacklogMeasure:
    """The backlog of one subscription.

    Attributes:
        bytes: Key and value bytes that the subscription has not acknowledged.
        oldest_publish_ms: Publish time of the oldest unacknowledged message, ms since 1970; 0 if it is unknown.
    """

    bytes: int
    oldest_publish_ms: int = 0


@dataclass(frozen=True, slots=True)
class QuotaExceeded:
    """A backlog quota that a topic exceeds; `by_age` is True for a quota by age, False for a quota by size."""

    quota: BacklogQuota
    by_age: bool

    @property
    def policy(self) -> BacklogQuotaPolicy:
        """The action that the quota demands when it is exceeded."""
        return self.quota.policy

    def __str__(self) -> str:
        if self.by_age:
            return f"older than {self.quota.limit_time} s (backlog quota message_age)"
        return f"above {self.quota.limit_size} bytes (backlog quota destination_storage)"


def has_quota(policies: Policies) -> bool:
    """Return True if the policies limit a topic's backlog."""
    return policies.backlog_quota_size.limit_size >= 0 or policies.backlog_quota_age.limit_time >= 0


def exceeded(policies: Policies, backlogs: Iterable[BacklogMeasure], now_ms: int) -> QuotaExceeded | None:
    """Return the quota that at least one subscription exceeds; None if no quota is exceeded.

    If both quotas are exceeded, the quota by size is returned.

    Args:
        policies: The topic's policies.
        backlogs: The backlogs of all its subscriptions.
        now_ms: The current time, in ms since 1970.
    """
    measures = list(backlogs)
    by_size, by_age = policies.backlog_quota_size, policies.backlog_quota_age
    if 0 <= by_size.limit_size < max((measure.bytes for measure in measures), default=0):
        return QuotaExceeded(by_size, by_age=False)
    oldest_ms = min(
        (measure.oldest_publish_ms for measure in measures if measure.bytes and measure.oldest_publish_ms),
        default=now_ms,
    )
    if 0 <= by_age.limit_time * 1000 < now_ms - oldest_ms:
        return QuotaExceeded(by_age, by_age=True)
    return None
