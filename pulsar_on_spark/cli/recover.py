"""`pulsarpy recover`: recover the journals of dead brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, open_root
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import IncarnationId

if TYPE_CHECKING:
    from pulsar_on_spark.root import Root
    from pulsar_on_spark.topic.managed_ledger.incarnation.recover_dead import RecoveredIncarnation

_SHOWN_TOPICS = 10


def recover(
    root: RootArgument = None,
    root_option: RootOption = None,
    incarnation: Annotated[
        str | None, typer.Option(help="Only this broker incarnation; `status` lists them.", show_default=False)
    ] = None,
    give_up_path: Annotated[
        list[int] | None,
        typer.Option(
            help="The id of a storage path that is lost for good, with all data that only this path had. Repeat the "
            "option for each path; needs --incarnation, and --yes.",
        ),
    ] = None,
    give_up_frames: Annotated[
        bool,
        typer.Option(
            "--give-up-frames",
            help="List the acknowledged frames of this closed journal that have no readable copy; with --yes, give "
            "them up, with the loss of their contents. Needs --incarnation.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Give paths or frames up if they cannot be recovered.")] = False,
    as_json: AsJson = False,
) -> None:
    """Recover the journals of dead brokers now. Brokers that renew their leases are not disturbed."""
    give_up = give_up_path or []
    if give_up and incarnation is None:
        raise InvalidArgumentError("Option --give-up-path is for one broker incarnation: name it with --incarnation.")
    opened = open_root(root, root_option)
    if give_up_frames:
        if incarnation is None:
            raise InvalidArgumentError(
                "Option --give-up-frames is for one broker incarnation: name it with --incarnation."
            )
        _give_up_frames(opened, IncarnationId(incarnation), yes=yes, as_json=as_json)
        return
    with output.waiting("checking which brokers are alive, recovering the others"):
        outcomes = opened.recover(incarnation, give_up if yes else ())
    if as_json:
        output.print_json(outcomes)
    else:
        _print(outcomes)
    failed = [recovered for recovered in outcomes if recovered.outcome == "not recovered"]
    for recovered in failed:
        output.fail(recovered.problem or "")
        if give_up and not yes:
            output.fail(_warning(recovered, give_up))
    if failed:
        raise typer.Exit(1)


def _give_up_frames(root: Root, incarnation: IncarnationId, *, yes: bool, as_json: bool) -> None:
    from pulsar_on_spark.topic.managed_ledger.sealing import lost_frames

    with output.waiting("reading the unsealed part of the journal"):
        lost = lost_frames.give_up_frames(root, incarnation, commit=yes)
    if as_json:
        output.print_json(lost)
    else:
        output.table(
            "Frames given up" if yes else "Frames without a readable copy",
            ("first", "last", "entries", "topics", "reason"),
            (
                (frames.begin, frames.end - 1, frames.entries, _some(frames.topics) or None, frames.reason)
                for frames in lost
            ),
        )
    if lost and not yes:
        output.fail(
            "Giving these frames up loses their entries and acknowledgements for good: bring their storage paths back, "
            "or run this again with --yes."
        )
        raise typer.Exit(1)


def _print(outcomes: Sequence[RecoveredIncarnation]) -> None:
    output.table(
        "Broker incarnations",
        ("id", "outcome", "last frame", "given up", "topics"),
        (
            (
                recovered.incarnation,
                recovered.outcome,
                recovered.last_frame,
                ", ".join(map(str, recovered.given_up)) or None,
                _some(recovered.topics) or None,
            )
            for recovered in outcomes
        ),
    )


def _warning(failed: RecoveredIncarnation, give_up: Sequence[int]) -> str:
    paths = ", ".join(map(str, give_up))
    return (
        f"Giving up storage path {paths} may lose acknowledged entries and acknowledgements of consumers at the end of "
        f"this journal, in the topics {_some(failed.topics) or 'that were closed in it'}. If the path cannot come "
        "back, run this again with --yes."
    )


def _some(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - _SHOWN_TOPICS:,} more" if len(topics) > _SHOWN_TOPICS else ""
    return ", ".join(topics[:_SHOWN_TOPICS]) + more
