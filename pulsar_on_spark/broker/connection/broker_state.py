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
        accepts_entries: Returns False while producers must wait, for example for writable storage paths.
        use_tls_port: A clause that names the port with TLS, for the log line of a TLS client at the port without TLS.
    """

    current_settings: Callable[[], BrokerSettings]
    accepts_entries: Callable[[], bool]
    use_tls_port: str
