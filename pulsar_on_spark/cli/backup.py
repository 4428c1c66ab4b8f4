"""`pulsarpy backup`: copy a root; the copy is a root, too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, open_root
from pulsar_on_spark.model.root_path import local_path


def backup(
    target: Annotated[Path, typer.Argument(help="The folder of the copy; it must be absent or empty.")],
    root: RootArgument = None,
    root_option: RootOption = None,
    as_json: AsJson = False,
) -> None:
    """Copy a root, with everything on its storage paths, while brokers and Spark run; verify the whole copy."""
    from pulsar_on_spark.topic.maintenance.backup.backup import back_up

    opened = open_root(root, root_option)
    with output.progress(as_json) as progress:
        done = back_up(opened, local_path(target), progress)
    if as_json:
        output.print_json(done)
    else:
        output.say(
            f"Backed up {opened.place} to {done.target}: {done.files:,} files, {done.check.good:,} copies verified as "
            f"good, {done.sealed_entries:,} entries sealed from journals."
        )
    for reason in done.check.reasons:
        output.fail(reason)
    if not done.check.is_good:
        output.fail(
            f"The backup has {done.check.missing:,} missing and {done.check.bad:,} bad copies, and "
            f"{done.check.lacking:,} without a storage path: repair the root, and back it up again."
        )
        raise typer.Exit(1)
