"""The handlers of clients' commands: one module per subject, each with tables from command type to function."""

from __future__ import annotations

from typing import Final

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Handlers
from pulsar_on_spark.broker.handlers import (
    acknowledging,
    consumer_stats,
    consuming,
    lookup,
    producing,
    schemas,
    session,
    transactions,
    watching,
)


def _closed(connection: Connection) -> None:
    producing.closed(connection)
    consuming.closed(connection)
    watching.closed(connection)


HANDLERS: Final = Handlers[Connection](
    requests={
        **lookup.REQUESTS,
        **producing.REQUESTS,
        **consuming.REQUESTS,
        **consumer_stats.REQUESTS,
        **schemas.REQUESTS,
        **transactions.REQUESTS,
        **watching.REQUESTS,
    },
    signals={**session.SIGNALS, **consuming.SIGNALS, **acknowledging.SIGNALS, **watching.SIGNALS},
    sent=producing.sent,
    writable_again=consuming.writable_again,
    closed=_closed,
)
