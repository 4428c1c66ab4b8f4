"""`pulsarpy produce`: the options of `pulsar-client produce`, or one message for each line of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, Topic
from pulsar_on_spark.cli.pace import Pace
from pulsar_on_spark.cli.pulsar_client import ServiceUrl, service_client
from pulsar_on_spark.model.errors import InvalidArgumentError


def produce(
    topic: Topic,
    messages: Annotated[
        list[str] | None, typer.Option("--messages", "--message", "-m", help="A message; repeat it for more.")
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--files", "-f", help="A file with the bytes of a message; repeat it for more.")
    ] = None,
    times: Annotated[
        int, typer.Option("--num-produce", "-n", min=1, help="Publish the messages and files this number of times.")
    ] = 1,
    rate: Annotated[float, typer.Option("--rate", "-r", min=0, help="Messages a second; 0 for no limit.")] = 0,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of all messages.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--properties", "-p", help="name=value,name=value for all messages.")
    ] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", help="One name=value, with commas allowed; repeat it for more.")
    ] = None,
    separator: Annotated[
        str | None, typer.Option("--separator", "-s", help="Split each of --messages at this text.")
    ] = None,
    batching: Annotated[
        bool, typer.Option("--batching/--disable-batching", " /-db", help="Send several messages as one entry.")
    ] = True,
    chunking: Annotated[
        bool, typer.Option("--chunking", "-c", help="Split messages that are too large; disables batching.")
    ] = False,
    url: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Publish the messages of --messages and --files, or without these options each line of standard input."""
    given = dict(_pair(pair) for text in properties or () for pair in text.split(","))
    given |= dict(_pair(pair) for pair in property_ or ())
    values = _values(messages or (), files or (), separator, times)
    sent = 0
    with service_client(url) as client:
        producer = client.create_producer(
            topic, block_if_queue_full=True, batching_enabled=batching and not chunking, chunking_enabled=chunking
        )
        failed: list[Any] = []
        pace = Pace(rate)
        for value in values:
            pace.wait(sent)
            producer.send_async(
                value,
                callback=lambda result, _: failed.append(result) if result.value else None,
                partition_key=key,
                properties=given or None,
            )
            sent += 1
        producer.flush()
    if failed:
        raise InvalidArgumentError(
            f"{len(failed)} of {sent} messages were not published to {topic} ({failed[0]}): look at the broker's log."
        )
    output.done(f"Published {sent:,} messages to {topic}.", as_json, topic=topic, messages=sent)


def _values(messages: Iterable[str], files: Iterable[Path], separator: str | None, times: int) -> Iterable[bytes]:
    """Return the values of the messages to publish.

    Args:
        messages: The texts of `--messages`.
        files: The files of `--files`, each of which has one value.
        separator: The text at which each of `messages` is split; None to keep them whole.
        times: The number of times to publish all values.

    Raises:
        InvalidArgumentError: a file cannot be read, the separator is empty, or `times` is above 1 for standard input.
    """
    if separator == "":
        raise InvalidArgumentError("Option --separator is empty: give the text between two messages.")
    split = [part for text in messages for part in (text.split(separator) if separator else [text])]
    given = [text.encode() for text in split] + [_content(file) for file in files]
    if given:
        return (value for _ in range(times) for value in given)
    if times > 1:
        raise InvalidArgumentError(
            "Option --num-produce does not repeat standard input: give --messages or --files, or leave the option out."
        )
    return _lines()


def _lines() -> Iterator[bytes]:
    for line in sys.stdin:
        yield line.rstrip("\n").encode()


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"Option --files {file} cannot be read ({error}): give another file.") from error


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgumentError(f"Property {text!r} is not of the form name=value: correct it.")
    return name, value
