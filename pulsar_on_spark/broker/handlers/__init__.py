"""The handlers of clients' commands: one module per subject, each with tables from command type to function."""

from __future__ import annotations

from functools import partial

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
from pulsar_on_spark.broker.handlers.command_rules import guarded, unguarded
from pulsar_on_spark.broker.services.services import Services


def make_handlers(services: Services) -> Handlers[Connection]:
    """Return the handlers of all commands of clients, bound to a broker's parts."""
    return Handlers(
        requests=guarded(
            services,
            {
                **lookup.requests(services),
                **producing.requests(services),
                **consuming.requests(services),
                **consumer_stats.requests(services),
                **schemas.requests(services),
                **transactions.REQUESTS,
                **watching.requests(services),
            },
        ),
        signals=unguarded(
            {
                **session.signals(services),
                **consuming.SIGNALS,
                **acknowledging.SIGNALS,
                **watching.signals(services),
            }
        ),
        sent=producing.sent,
        writable_again=consuming.writable_again,
        closed=partial(_closed, services),
        renew=session.renew,
    )


def _closed(services: Services, connection: Connection) -> None:
    producing.closed(connection)
    consuming.closed(connection)
    watching.closed(services, connection)
    session.closed(services, connection)
