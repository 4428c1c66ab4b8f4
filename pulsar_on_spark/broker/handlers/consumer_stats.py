"""The handler of CONSUMER_STATS: statistics of a consumer for its own client (C++ `getBrokerConsumerStats`)."""

from __future__ import annotations

from functools import partial

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Request
from pulsar_on_spark.broker.handlers.consuming import stored_consumer
from pulsar_on_spark.broker.observe.topic_stats import consumer_stats
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import BaseCommand, CommandConsumerStats, CommandConsumerStatsResponse


async def stats(services: Services, connection: Connection, command: CommandConsumerStats) -> None:
    """Handle CONSUMER_STATS. The returned backlog is the subscription's, in entries, as in official brokers."""
    _, subscription, consumer = stored_consumer(connection, command.consumer_id)
    numbers = consumer_stats(subscription, consumer, services.overview.meters.rates)
    connection.write(
        replies.consumer_stats_response(
            CommandConsumerStatsResponse(
                request_id=command.request_id,
                msgRateOut=numbers.msg_rate_out,
                msgThroughputOut=numbers.msg_throughput_out,
                consumerName=numbers.consumer_name,
                availablePermits=max(numbers.available_permits, 0),
                unackedMessages=numbers.unacked_messages,
                blockedConsumerOnUnackedMsgs=numbers.blocked_consumer_on_unacked_msgs,
                address=numbers.address,
                connectedSince=numbers.connected_since,
                type=subscription.type,
                msgBacklog=subscription.kept.cursor.backlog_entries,
            )
        )
    )


def requests(services: Services) -> dict[int, Request[Connection]]:
    """Return the handler of CONSUMER_STATS, by type of command."""
    return {BaseCommand.CONSUMER_STATS: Request(partial(stats, services), replies.consumer_stats_failed)}
