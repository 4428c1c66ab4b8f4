"""Adoption of settings that are changed, through any broker of the root, while a broker runs."""

from __future__ import annotations

import asyncio
from typing import Final

from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.services.settings_changes import changed_values, follow_log_level, in_force
from pulsar_on_spark.broker.topics.topic_policies import broker_publish_rate, dispatch_limits

LOOK_EVERY_S: Final = 1.0
"""Interval at which the view is checked for changes, in seconds; the view itself is up to a second old."""


def adopt_settings(services: Services) -> None:
    """Put the changed settings of the newest view in force. `TopicWatch` applies the settings that concern topics."""
    now = in_force(services.given, changed_values(services.views.recent))
    if now == services.settings:
        return
    follow_log_level(services.settings, now)
    services.settings = now
    services.topic_parts.dispatch = dispatch_limits(now)
    services.topic_parts.publish_rate.set_rate(*broker_publish_rate(now))


class SettingsFollower:
    """Adoption of settings that were changed through other brokers.

    Args:
        services: The broker's parts.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._seen: dict[str, str] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to look for changed settings."""
        complaint = "Settings that were changed cannot be used now"
        self._looking = asyncio.create_task(every(LOOK_EVERY_S, self._look, complaint), name="settings")

    async def stop(self) -> None:
        """Stop looking for changed settings."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        values = changed_values(self._services.views.recent)
        if values != self._seen:
            adopt_settings(self._services)
            self._seen = values
