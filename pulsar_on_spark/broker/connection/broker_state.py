"""The state of the broker that connections depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pulsar_on_spark.broker.runtime.settings import BrokerSettings


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The state of the broker that connections depend on.

    Attributes:
        current_settings: Returns the settings in force, which may change while the broker runs.
        accepts_entries: Returns False while producers have to wait, for example for writable storage paths.
        use_tls_port: The end of the log line about a TLS client on the port without TLS, which names the TLS port.
    """

    current_settings: Callable[[], BrokerSettings]
    accepts_entries: Callable[[], bool]
    use_tls_port: str
