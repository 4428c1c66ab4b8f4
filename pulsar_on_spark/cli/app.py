"""The commands on a root as a whole, and the program's entry point."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from pulsar_on_spark.cli import looks, operate, output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, open_root, root_place
from pulsar_on_spark.cli.backup import backup
from pulsar_on_spark.cli.broker_target import BrokerTarget
from pulsar_on_spark.cli.brokers import brokers_app
from pulsar_on_spark.cli.compact import compact
from pulsar_on_spark.cli.connection import with_client_options
from pulsar_on_spark.cli.consume import consume
from pulsar_on_spark.cli.history import history_app
from pulsar_on_spark.cli.http_admin import RequestRefusedError
from pulsar_on_spark.cli.offload import offload, offload_status
from pulsar_on_spark.cli.perf import perf_app
from pulsar_on_spark.cli.permissions import permissions_app
from pulsar_on_spark.cli.produce import produce
from pulsar_on_spark.cli.proxy import proxy
from pulsar_on_spark.cli.pulsar_names import PulsarGroup
from pulsar_on_spark.cli.read import read
from pulsar_on_spark.cli.recover import recover
from pulsar_on_spark.cli.restore import restore
from pulsar_on_spark.cli.schemas import schemas_app
from pulsar_on_spark.cli.security import security_app
from pulsar_on_spark.cli.standalone import broker, standalone
from pulsar_on_spark.cli.storage import print_paths, storage_app
from pulsar_on_spark.cli.subscriptions import subscriptions_app
from pulsar_on_spark.cli.targets import UrlOption, open_target
from pulsar_on_spark.cli.tenants import namespaces_app, policies_app, tenants_app
from pulsar_on_spark.cli.tokens import tokens_app
from pulsar_on_spark.cli.topics import topics_app
from pulsar_on_spark.cli.units import duration_s
from pulsar_on_spark.cli.upgrade import upgrade
from pulsar_on_spark.cli.usage import usage
from pulsar_on_spark.model.errors import InvalidArgumentError, PulsarpyError, sentence_of
from pulsar_on_spark.model.logs import TextLines
from pulsar_on_spark.model.quorum import Quorum

if TYPE_CHECKING:
    from pulsar_on_spark.topic.maintenance.maintain import MaintainReport
    from pulsar_on_spark.topic.maintenance.status import RootStatus, StorageStatus
    from pulsar_on_spark.topic.managed_ledger.subscription.subscription_status import TopicSubscription

app = typer.Typer(
    name="pulsarpy",
    help="Topics in a folder, the root: name the folder as the last argument, as --root, or in PULSARPY_ROOT. With "
    "--url (or PULSARPY_URL), commands use the broker that serves the root instead.",
    no_args_is_help=True,
    cls=PulsarGroup,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the program. A failure is reported as one sentence on standard error, with exit code 1.

    Standard error also shows the log's errors, and its messages about waiting for dead brokers.
    """
    shown = logging.StreamHandler()
    shown.addFilter(_is_shown)
    shown.setFormatter(TextLines("pulsarpy: %(message)s"))
    # By force, because some libraries add a handler when they are imported.
    logging.basicConfig(level=logging.WARNING, handlers=[shown], force=True)
    try:
        app()
    except PulsarpyError as error:
        output.fail(str(error))
        sys.exit(1)
    except OSError as error:
        output.fail(sentence_of(error))
        sys.exit(1)


def _is_shown(record: logging.LogRecord) -> bool:
    from pulsar_on_spark.topic.managed_ledger.incarnation import dead_brokers

    return record.levelno >= logging.ERROR or record.name == dead_brokers.__name__


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        output.say(f"pulsarpy {version('pulsar-on-spark')}")
        raise typer.Exit


@app.callback()
def program(
    version_: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself."""


def init(
    root: RootArgument = None,
    root_option: RootOption = None,
    storage_path: Annotated[
        list[str] | None,
        typer.Option("--storage-path", help="A directory or URL for copies of the data; repeat it for each disk."),
    ] = None,
    quorum: Annotated[
        str | None,
        typer.Option(
            metavar="E/W/A",
            help="Ensemble, write quorum and ack quorum [3/3/2 in a folder, 1/1/1 on an object store].",
        ),
    ] = None,
    file_mode: Annotated[
        Literal["0600", "0660"],
        typer.Option("--root-file-mode", help="Permissions of the files; 0660 shares them with the folder's group."),
    ] = "0600",
    as_json: AsJson = False,
) -> None:
    """Create a root in a folder that is absent or empty, or at a URL with nothing below it."""
    from pulsar_on_spark.root import Root

    wanted = None if quorum is None else Quorum.parse(quorum)
    made = Root.create(root_place(root, root_option), storage_path or (), wanted, int(file_mode, 8))
    paths = made.storage_paths(made.store.view()).values()
    if as_json:
        output.print_json({"root": str(made.place), "cluster_id": made.cluster_id, "quorum": str(made.quorum)})
        return
    output.say(f"Created the root {made.place} with quorum {made.quorum} on {len(paths)} storage paths:")
    for path in paths:
        output.say(f"  {path.path_id}  {path.place}")


def status(
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    verify: Annotated[bool, typer.Option("--verify", help="First read every copy of every file in full.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show storage paths, brokers, topics and subscriptions, their backlog, and missing or bad copies.

    With --url: check the broker's health, and show storage paths, topics and subscriptions as the broker sees them.
    With --verify: end with exit code 1 if copies are bad.
    """
    target = open_target(root, root_option, url)
    if isinstance(target, BrokerTarget):
        if verify:
            raise InvalidArgumentError("--verify reads the storage paths of a root: give a root instead of --url.")
        _show_broker(target, as_json)
        return
    with output.progress(as_json) as progress:
        state = target.root.status(verify=verify, progress=progress)
    if as_json:
        output.print_json(state)
    else:
        _print_status(state)
    if verify and (state.bad_copies or state.losses):
        raise typer.Exit(1)


def maintain(
    root: RootArgument = None,
    root_option: RootOption = None,
    abort_after: Annotated[
        str, typer.Option(help="Abort writes that have been uncommitted for longer than this, such as 24h, 90m or 30s.")
    ] = "24h",
    as_json: AsJson = False,
) -> None:
    """Run one pass of housekeeping: repair, trim, merge, offload, build histories, collect garbage, vacuum."""
    from pulsar_on_spark.topic.maintenance.files.collect import Ages

    ages = Ages(abort_after_s=duration_s(abort_after, "Option --abort-after"))
    opened = open_root(root, root_option)
    with output.progress(as_json) as progress:
        done = opened.maintain(ages, progress)
    if as_json:
        output.print_json(done)
    else:
        _print_maintained(done)
    for problem in done.problems:
        output.fail(problem)
    if done.problems:
        raise typer.Exit(1)


def _show_broker(target: BrokerTarget, as_json: bool) -> None:
    """Print the broker's state (raises `RequestRefusedError` if the broker is not healthy)."""
    admin = target.admin
    running = admin.request("GET", ("brokers", "version"), {}).content.decode()
    topics, subscriptions, storage = target.topics(), target.subscriptions(), target.storage()
    try:
        warning = admin.request("GET", ("brokers", "health"), {}).headers.get("x-pulsarpy-warning")
    except RequestRefusedError:
        if storage is not None and not as_json:
            print_paths(storage.paths)
            _print_copies(storage)
        raise
    if as_json:
        named = [{"name": name, "partitions": partitions} for name, partitions in topics]
        known: dict[str, object] = {"url": admin.url, "version": running, "warning": warning, "topics": named}
        output.print_json(known | {"subscriptions": subscriptions, "storage": storage})
        return
    output.say(f"Broker {admin.url}, version {running}: it stores and delivers messages.")
    if warning is not None:
        output.say(warning)
    if storage is not None:
        print_paths(storage.paths)
    output.table("Topics", ("name", "partitions"), topics)
    _print_subscriptions(subscriptions)
    if storage is not None:
        _print_copies(storage)


def _print_subscriptions(subscriptions: Iterable[TopicSubscription]) -> None:
    output.table(
        "Subscriptions",
        ("topic", "name", "type", "consumers", "backlog", "backlog size"),
        (
            (s.topic, s.name, s.type, ", ".join(s.consumers) or None, s.backlog_messages, output.size(s.backlog_bytes))
            for s in subscriptions
        ),
    )


def _print_status(state: RootStatus) -> None:
    output.say(f"Root {state.root}, quorum {state.quorum}, cluster {state.cluster_id}")
    print_paths(state.paths)
    output.table(
        "Brokers",
        ("broker", "URL", "state", "host", "version", "bundles", "topics"),
        ((b.broker, b.service_url, b.state, b.host, b.version, len(b.bundles), b.topics) for b in state.brokers),
    )
    output.table(
        "Topics",
        ("name", "partitions", "schema", "messages", "size", "ledgers", "segments", "files"),
        (
            (t.name, t.partitions, t.schema, t.messages, output.size(t.bytes), t.ledgers, t.segments, t.files)
            for t in state.topics
        ),
    )
    _print_subscriptions(state.subscriptions)
    for topic in state.topics:
        for ledger, first, end in topic.given_up:
            output.say(
                f"{topic.name}: entries {ledger}:{first} to {f'{ledger}:{end}' if end > first else 'its end'} "
                "are lost and were given up."
            )
    _print_copies(state)
    if state.verified_copies is not None:
        output.say(f"{state.verified_copies:,} copies verified as good.")


def _print_copies(state: StorageStatus) -> None:
    """Print the journals of brokers, the missing and bad copies, and the last audit."""
    if state.incarnations:
        output.table(
            "Broker incarnations",
            ("id", "state", "lease", "open ledgers", "fragments", "unsealed files"),
            (
                (i.incarnation, i.state, i.lease, i.open_ledgers, i.fragments, output.size(i.journal_bytes))
                for i in state.incarnations
            ),
        )
        for incarnation in state.incarnations:
            if incarnation.given_up_paths:
                output.say(
                    f"The journal of incarnation {incarnation.incarnation} was closed without storage paths "
                    f"{', '.join(map(str, incarnation.given_up_paths))}: entries may be missing."
                )
            for first, end in incarnation.given_up_frames:
                output.say(f"Frames {first} to {end - 1} of incarnation {incarnation.incarnation} were given up.")
    for report in (*state.losses, *state.bad_copies):
        where = "no good copy is left" if report.path_id is None else f"bad copy on storage path {report.path_id}"
        output.say(f"File {report.file_id}: {where}: {report.reason}")
    unchecked = f", {state.unchecked_copies:,} to be checked" if state.unchecked_copies else ""
    output.say(f"Copies: {state.missing_copies:,} missing, {len(state.bad_copies):,} bad{unchecked}.")
    output.say(_audited(state))


def _audited(state: StorageStatus) -> str:
    last = state.audit
    if not last.audited_ms:
        return "Audit: none yet; run `pulsarpy maintain` or `pulsarpy storage repair`."
    rounds = [state.audit.scrubs.get(path.path_id) for path in state.paths]
    whole = min((scrub.completed_ms or 0 if scrub else 0 for scrub in rounds), default=0)
    return (
        f"Audit: {_when(last.audited_ms)}, {last.missing:,} copies missing, {last.bad:,} bad, {last.restored:,} "
        f"restored, {last.unfinished:,} files left to do, {last.lacking:,} copies without a storage path; all copies "
        f"read in full: {_when(whole) if whole else 'not yet'}."
    )


def _when(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _print_maintained(done: MaintainReport) -> None:
    merged, collected = done.merge, done.collect
    output.table(
        "Maintained",
        ("step", "done"),
        (
            ("storage paths healthy again", len(done.healed_paths)),
            ("journal entries sealed", done.journals.sealed_entries),
            ("journals removed", done.journals.cleared),
            ("copies restored", done.repair.work.restored),
            ("copies without a storage path", done.repair.lacking),
            ("topics trimmed", done.trimmed.topics),
            ("messages trimmed", done.trimmed.messages),
            ("segments merged", merged.merged_segments),
            ("new, merged segments", merged.new_segments),
            ("in files", merged.new_files),
            ("segments skipped", merged.skipped_segments),
            ("files offloaded", done.offload.moved.moved),
            ("subscriptions expired", done.expired_subscriptions),
            ("writes aborted", collected.aborted_writes),
            ("files deleted", collected.deleted_files),
            ("bytes deleted", collected.deleted_bytes),
            ("metadata folds", int(done.folded)),
            ("metadata files deleted", done.vacuumed_files),
            ("old leases deleted", done.swept_leases),
        ),
    )
    for skipped in collected.skipped_paths:
        output.fail(f"Garbage collection skipped a path: {skipped}")


_COMMANDS: Final[tuple[tuple[str, tuple[Callable[..., None], ...], Mapping[str, typer.Typer]], ...]] = (
    ("A root", (init, status, usage, maintain, recover, backup, restore, upgrade), {"storage": storage_app}),
    (
        "A broker",
        (standalone, broker, proxy),
        {"brokers": brokers_app, "perf": perf_app, "security": security_app, "tokens": tokens_app},
    ),
    ("Messages", (produce, consume, read), {}),
    (
        "Contents of a root",
        (operate.seek, looks.peek, compact, offload, offload_status),
        {
            "topics": topics_app,
            "subscriptions": subscriptions_app,
            "namespaces": namespaces_app,
            "tenants": tenants_app,
            "policies": policies_app,
            "permissions": permissions_app,
            "schemas": schemas_app,
            "history": history_app,
        },
    ),
)
"""The headings of the help, each with its commands, and its groups of commands by name."""
for _heading, _functions, _groups in _COMMANDS:
    for _function in _functions:
        app.command(rich_help_panel=_heading)(_function)
    for _name, _group in _groups.items():
        app.add_typer(_group, name=_name, rich_help_panel=_heading, cls=PulsarGroup)
with_client_options(app)
