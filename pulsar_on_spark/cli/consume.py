"""`pulsarpy consume`: the options of `pulsar-client consume`, and a time limit for waiting without messages."""

from __future__ import annotations

import math
import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, Topic
from pulsar_on_spark.cli.message_lines import print_message
from pulsar_on_spark.cli.message_values import NO_SCHEMA
from pulsar_on_spark.cli.pace import Pace
from pulsar_on_spark.cli.pulsar_client import (
    ServiceUrl,
    SubscriptionPosition,
    SubscriptionType,
    service_client,
)
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import DEFAULT_NAMESPACE, DEFAULT_TENANT

if TYPE_CHECKING:
    import pulsar

_LOOK_S: Final = 1.0
"""Time limit in seconds of one receive call of the client, during which Ctrl-C has no effect."""
_TIMEOUT_S: Final = 10.0


def consume(
    topic: Topic,
    subscription: Annotated[
        str,
        typer.Option("--subscription-name", "--subscription", "-s", help="The subscription; created if it is missing."),
    ],
    number: Annotated[
        int | None,
        typer.Option(
            "--num-messages",
            "--number",
            "-n",
            min=0,
            help="Stop after this number of messages [1]; 0 for no limit.",
            show_default=False,
        ),
    ] = None,
    type_: Annotated[
        SubscriptionType,
        typer.Option("--subscription-type", "-t", case_sensitive=False, help="The subscription's type."),
    ] = SubscriptionType.SHARED,
    position: Annotated[
        SubscriptionPosition,
        typer.Option("--subscription-position", "-p", case_sensitive=False, help="Start of a new subscription."),
    ] = SubscriptionPosition.LATEST,
    earliest: Annotated[bool, typer.Option("--earliest", help="The same as -p Earliest.")] = False,
    rate: Annotated[float, typer.Option("--rate", "-r", min=0, help="Messages a second; 0 for no limit.")] = 0,
    regex: Annotated[
        bool, typer.Option("--regex", help="TOPIC is a pattern: consume all matching topics of its namespace.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Stop after this time without a message [10; none with -n 0]; 0 waits until Ctrl-C.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for messages until Ctrl-C.")] = False,
    url: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Receive and acknowledge messages; exit with 1 if fewer messages than --num-messages arrive."""
    if follow and timeout:
        raise InvalidArgumentError("Option --follow waits until Ctrl-C, but --timeout does not: give one of them.")
    wanted = number if number is not None else 0 if follow else 1
    longest_s = math.inf if follow else patience_s(wanted, timeout)
    start = SubscriptionPosition.EARLIEST if earliest else position
    with service_client(url) as client:
        # Without acknowledgements of batch indexes, a batch would be redelivered whole if only a part was received.
        consumer = client.subscribe(
            _pattern(topic) if regex else topic,
            subscription,
            type_.of_client(),
            initial_position=start.of_client(),
            batch_index_ack_enabled=True,
        )
        pace = Pace(rate)
        received = 0
        while not wanted or received < wanted:
            pace.wait(received)
            message = _next(consumer, longest_s)
            if message is None:
                break
            print_message(message, NO_SCHEMA, as_json, with_topic=regex)
            sys.stdout.flush()
            consumer.acknowledge(message)
            received += 1
    if received < wanted:
        output.fail(
            f"{received:,} of {wanted:,} messages arrived from {topic}, then none for {longest_s:g} s: set --timeout "
            "to wait longer."
        )
        raise typer.Exit(1)


def patience_s(wanted: int, timeout_s: float | None) -> float:
    """Return the seconds to wait for the next message; infinity for no limit.

    Args:
        wanted: The number of messages to receive; 0 for no limit, which by default means an unlimited wait.
        timeout_s: The option `--timeout` in seconds, where 0 means no limit; None for the default.
    """
    if timeout_s is None:
        return _TIMEOUT_S if wanted else math.inf
    return timeout_s or math.inf


def _pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of full topic names; a short pattern is completed like the short name of a topic.

    Raises:
        InvalidArgumentError: the text is not a regular expression.
    """
    short = text if "/" in text else f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}/{text}"
    try:
        return re.compile(text if "://" in text else f"persistent://{short}")
    except re.error as error:
        raise InvalidArgumentError(
            f"Topic {text!r} is not a pattern ({error}): correct it, or leave out --regex."
        ) from error


def _next(consumer: Any, patience_s: float) -> pulsar.Message | None:
    """Return the next message; None if no message arrives in `patience_s` seconds.

    A wait without a limit is noted on standard error after ten seconds.
    """
    import pulsar

    begun_s = time.monotonic()
    end_s = begun_s + patience_s
    is_noted = patience_s < math.inf
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            return consumer.receive(math.ceil(min(left_s, _LOOK_S) * 1000))
        except pulsar.Timeout:
            if not is_noted and time.monotonic() - begun_s >= _TIMEOUT_S:
                output.note(f"No message arrived for {_TIMEOUT_S:g} s; waiting until Ctrl-C, or see --timeout.")
                is_noted = True
    return None
