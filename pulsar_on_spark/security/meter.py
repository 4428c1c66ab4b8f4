"""Counts of authentications, for metrics."""

from __future__ import annotations

from collections import Counter

from pulsar_on_spark.security.evidence import Failure, NotAuthenticatedError


class AuthenticationMeter:
    """Counts of a broker's authentications since its start.

    Attributes:
        successes: Counts by the provider's name and method.
        failures: Counts by the provider's name and method (`none` if no provider was asked) and the reason.
    """

    def __init__(self) -> None:
        self.successes: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[tuple[str, str, Failure]] = Counter()

    def note_success(self, provider: str, method: str) -> None:
        """Count credentials that a provider accepted."""
        self.successes[provider, method] += 1

    def note_failure(self, refusal: NotAuthenticatedError) -> None:
        """Count a client that was refused, by the refusal's provider, method and reason."""
        self.failures[refusal.provider, refusal.method, refusal.failure] += 1
