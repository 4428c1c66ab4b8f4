"""`pulsarpy storage`: storage paths, and the check and repair of the copies on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, open_root
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.health import Hold

if TYPE_CHECKING:
    from pulsar_on_spark.metadata.records import PathRecord
    from pulsar_on_spark.root import Root
    from pulsar_on_spark.topic.maintenance.repair.checking import CheckReport
    from pulsar_on_spark.topic.maintenance.repair.repairing import RepairReport
    from pulsar_on_spark.topic.maintenance.storage_status import PathNumbers

storage_app = typer.Typer(help="Storage paths and the copies on them.", no_args_is_help=True)
PathIdArgument = Annotated[int, typer.Argument(metavar="ID", help="The path's id, as `list` shows it.")]
Label = Annotated[
    str,
    typer.Option(
        help="The path's rack: copies of a file go to different racks. For a cold path, the driver of offload policies."
    ),
]
_SHOWN = 20


@storage_app.command("list")
def list_(root: RootArgument = None, root_option: RootOption = None, as_json: AsJson = False) -> None:
    """List storage paths, their contents, and their problems."""
    from pulsar_on_spark.topic.maintenance.status import storage_status

    paths = storage_status(open_root(root, root_option)).paths
    if as_json:
        output.print_json(paths)
        return
    print_paths(paths)


@storage_app.command()
def add(
    place: Annotated[
        str, typer.Argument(help="An empty directory or URL, or that of a lost path that is back.", metavar="PLACE")
    ],
    root: RootArgument = None,
    root_option: RootOption = None,
    label: Label = "",
    role: Annotated[
        Literal["both", "journal", "segments", "cold", "history"],
        typer.Option(
            help="The files that the path is for; a URL in a local root is for segments by default, a cold path is for "
            "offloaded segments, a history path for the tables of histories."
        ),
    ] = "both",
    profile: Annotated[str, typer.Option(help="Profile with a URL's options [the one that matches it].")] = "",
    as_json: AsJson = False,
) -> None:
    """Add a storage path, or bring a lost path back. A running broker uses the path within seconds."""
    from pulsar_on_spark.topic.maintenance.repair import storage_paths

    added = storage_paths.add(open_root(root, root_option), place, label, role=role, profile=profile)
    what = f"Added {place} as storage path {added.path_id}."
    if added.check_since is not None:
        what = f"Storage path {added.path_id} is back: run `pulsarpy storage repair`, which verifies its copies."
    _say(added, what, as_json)


@storage_app.command()
def drain(
    path_id: PathIdArgument, root: RootArgument = None, root_option: RootOption = None, as_json: AsJson = False
) -> None:
    """Stop writing to a path. `repair` then copies its contents to other paths, except histories, which stay there."""
    from pulsar_on_spark.topic.maintenance.repair import storage_paths

    drained = storage_paths.drain(open_root(root, root_option), path_id)
    _say(drained, f"Storage path {path_id} is draining: run `pulsarpy storage repair` to copy its contents.", as_json)


@storage_app.command()
def resume(
    path_id: PathIdArgument, root: RootArgument = None, root_option: RootOption = None, as_json: AsJson = False
) -> None:
    """Write again to a path that was drained, partly retired, or failed and is well; claim a cold or history path."""
    from pulsar_on_spark.topic.maintenance.repair import storage_paths

    resumed = storage_paths.resume(open_root(root, root_option), path_id)
    _say(resumed, f"Storage path {path_id} is writable again.", as_json)


@storage_app.command()
def lost(
    path_id: PathIdArgument,
    root: RootArgument = None,
    root_option: RootOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Mark it lost even if it has files' only copies, or histories.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Declare a path's disk lost. `repair` then restores its copies from the copies on other paths."""
    from pulsar_on_spark.topic.maintenance.repair import storage_paths

    given_up = storage_paths.give_up(open_root(root, root_option), path_id, force=force)
    _say(given_up, f"Storage path {path_id} is lost: run `pulsarpy storage repair` to restore its copies.", as_json)


@storage_app.command()
def retire(
    path_id: PathIdArgument, root: RootArgument = None, root_option: RootOption = None, as_json: AsJson = False
) -> None:
    """Remove a drained or lost path that is no longer needed from the root; finish an interrupted retirement."""
    from pulsar_on_spark.topic.maintenance.repair import storage_paths

    retired = storage_paths.retire(open_root(root, root_option), path_id)
    _say(retired, f"Storage path {path_id} is retired: its disk can be removed.", as_json)


@storage_app.command("check")
def check_(
    root: RootArgument = None,
    root_option: RootOption = None,
    path_id: Annotated[int | None, typer.Option("--path", help="Only the copies on this storage path.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read every copy in full, and list missing, bad and misplaced copies, without repairing them."""
    from pulsar_on_spark.topic.maintenance.repair.checking import check

    opened = open_root(root, root_option)
    with output.progress(as_json) as progress:
        report = check(opened, None if path_id is None else PathId(path_id), progress=progress)
    if as_json:
        output.print_json(report)
    else:
        _print_check(report)
    if not report.is_good:
        raise typer.Exit(1)


@storage_app.command()
def repair(
    root: RootArgument = None,
    root_option: RootOption = None,
    rate: Annotated[float | None, typer.Option(help="Limit of MB read and written a second.", min=0.001)] = None,
    as_json: AsJson = False,
) -> None:
    """Find missing, bad and misplaced copies, and restore the write quorum."""
    from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits

    limits = RepairLimits(bytes_per_second=None if rate is None else rate * 1e6)
    opened = open_root(root, root_option)
    with output.progress(as_json) as progress:
        done = opened.repair(limits, progress)
    if as_json:
        output.print_json(done)
    else:
        _print_repair(opened, done)
    for problem in _problems(done):
        output.fail(problem)
    if not done.is_whole:
        raise typer.Exit(1)


def print_paths(paths: tuple[PathNumbers, ...]) -> None:
    """Print the table of storage paths, and the problems of each path."""
    output.table(
        "Storage paths",
        ("id", "directory", "label", "role", "state", "free", "copies", "size", "bad copies"),
        (
            (
                str(path.path_id),
                str(path.directory),
                path.label or None,
                path.role,
                _state(path),
                output.size(path.free_bytes),
                path.copies,
                output.size(path.bytes),
                path.bad_copies,
            )
            for path in paths
        ),
    )
    for path in paths:
        if not path.is_there or path.hold is not Hold.OURS:  # the reason names the path
            output.say(path.reason)
        elif path.reason:
            output.say(f"Storage path {path.path_id}: {path.reason}")


def _state(path: PathNumbers) -> str:
    state = path.state if path.is_checked else f"{path.state}, to be checked"
    state = state if path.hold is Hold.OURS else f"{state}, only read from"
    return state if path.is_there else f"{state}, not reachable"


def _say(record: PathRecord, what: str, as_json: bool) -> None:
    if as_json:
        output.print_json(record)
    else:
        output.say(what)


def _print_check(report: CheckReport) -> None:
    output.table(
        "Checked",
        ("copies", "number"),
        (
            ("good, read in full", report.good),
            ("missing", report.missing),
            ("bad", report.bad),
            ("without a storage path", report.lacking),
        ),
    )
    for reason in report.reasons[:_SHOWN]:
        output.say(reason)
    if len(report.reasons) > _SHOWN:
        output.say(f"... and {len(report.reasons) - _SHOWN:,} more; --json shows all.")
    if not report.is_good:
        output.say("`pulsarpy storage repair` restores everything that has a good copy.")


def _print_repair(root: Root, done: RepairReport) -> None:
    output.table(
        "Repaired",
        ("copies", "number"),
        (
            ("missing", done.missing),
            ("bad", done.bad),
            ("read in full", done.scrubbed.copies),
            ("restored", done.work.restored),
            ("bytes restored", done.work.bytes),
            ("files moved to other paths", done.work.moved),
            ("replaced copies deleted", done.work.dropped),
            ("without a storage path", done.lacking),
        ),
    )
    for path_id in done.checked_paths:
        output.say(f"Storage path {path_id} was read in full: its copies count as good.")
    for fragment in done.bare_fragments[:_SHOWN]:
        then = "will be sealed by `pulsarpy maintain`" if fragment.is_closed else "gets a new ensemble from its broker"
        output.say(
            f"Journal of incarnation {fragment.incarnation}, frames from {fragment.first_frame} on: {fragment.copies} "
            f"of {fragment.wanted} copies; it {then}."
        )


def _problems(done: RepairReport) -> list[str]:
    problems = [
        *done.away,
        *done.work.problems,
        *done.scrubbed.unexamined,
        *(f"File {file_id}: {reason}" for file_id, reason in done.work.lost),
    ]
    if done.lacking:
        problems.append(f"{done.lacking:,} copies have no storage path left: add one with `pulsarpy storage add`.")
    if done.work.unfinished:
        problems.append(f"{done.work.unfinished:,} files are not repaired yet: run `pulsarpy storage repair` again.")
    return problems
