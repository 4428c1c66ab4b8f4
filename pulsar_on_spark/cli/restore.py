"""`pulsarpy restore`: create a new root with the state of a root at an earlier time."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, open_root
from pulsar_on_spark.cli.units import duration_s, is_duration
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.storage.root_place import parse_place

if TYPE_CHECKING:
    from pulsar_on_spark.topic.maintenance.backup.restore import RestoreReport

_SHOWN_TOPICS = 10


def restore(
    target: Annotated[str, typer.Argument(help="The folder or URL of the new root; nothing may be there yet.")],
    to: Annotated[
        str,
        typer.Option(
            metavar="TIME|VERSION",
            help="The moment: 2026-01-31T12:00:00Z, 90m for 90 minutes ago, or a version of the metadata's main table.",
            show_default=False,
        ),
    ],
    root: RootArgument = None,
    root_option: RootOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be restored and what is missing; write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a new root with the state of a root at an earlier time, which the log of its metadata must still have."""
    from pulsar_on_spark.topic.maintenance.backup.restore import restore_root

    moment = parse_moment(to, datetime.now(UTC))
    opened = open_root(root, root_option)
    with output.progress(as_json) as progress:
        done = restore_root(opened, parse_place(target), moment, progress, dry_run=dry_run)
    if as_json:
        output.print_json(done)
    else:
        _print(str(opened.place), done, dry_run=dry_run)
    if done.missing:
        output.fail(
            f"The restored root lacks {len(done.missing):,} parts of topics, because their files have been deleted: "
            "readers report them as lost."
        )
        raise typer.Exit(1)


def parse_moment(text: str, now: datetime) -> int | datetime:
    """Return the moment of the option `--to`: a version, a time with a zone, or a duration before `now`.

    Returns:
        The version as a number, or the time with a zone.

    Raises:
        InvalidArgumentError: the text has none of these forms.
    """
    with suppress(ValueError, OverflowError):
        if text.isdecimal():
            return int(text)
        if is_duration(text):
            return now - timedelta(seconds=duration_s(text, "--to"))
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    raise InvalidArgumentError(
        f"--to is {text!r}: give a time with a zone such as 2026-01-31T12:00:00Z, a duration such as 90m for 90 "
        "minutes ago, or a version of the metadata's main table."
    )


def _print(source: str, done: RestoreReport, *, dry_run: bool) -> None:
    begin = f"Would restore {source}" if dry_run else f"Restored {source}"
    output.say(
        f"{begin} as of {done.at.isoformat(timespec='milliseconds')} (version {done.version}) to {done.target}: "
        f"{done.topics:,} topics, {done.messages:,} messages, {done.files:,} files, {output.size(done.bytes)} a copy."
    )
    if done.missing:
        output.table(
            "Lost", ("topic", "file", "messages"), ((part.topic, part.file_id, part.messages) for part in done.missing)
        )
    if done.unsealed:
        more = f" and {len(done.unsealed) - _SHOWN_TOPICS:,} more" if len(done.unsealed) > _SHOWN_TOPICS else ""
        output.say(
            "Messages that were only in a broker's journal are not restored; there may have been some in "
            f"{', '.join(done.unsealed[:_SHOWN_TOPICS])}{more}."
        )
