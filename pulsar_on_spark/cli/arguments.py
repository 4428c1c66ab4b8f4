"""Arguments that commands share: the root, the topic or subscription, and the option `--json`.

Like all modules of commands, this module imports slow modules only where they are used, so that a command starts fast.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, TypeGuard

import typer

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.root_path import ROOT_VARIABLE
from pulsar_on_spark.storage.root_place import RootPlace, parse_place

if TYPE_CHECKING:
    from pulsar_on_spark.root import Root

RootArgument = Annotated[
    str | None,
    typer.Argument(metavar="[ROOT]", help="The root's folder, or its URL on an object store.", show_default=False),
]
RootOption = Annotated[
    str | None, typer.Option("--root", help="The root's folder or URL.", envvar=ROOT_VARIABLE, show_default=False)
]
Topic = Annotated[str, typer.Argument(help="The topic.")]
Subscription = Annotated[str, typer.Argument(help="The subscription.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def listed(given: Iterable[str]) -> list[str]:
    """Return the values of an option that was given several times, or with several values separated by commas."""
    return [value for text in given for value in map(str.strip, text.split(",")) if value]


def is_in_command(option: str | None) -> TypeGuard[str]:
    """Return True if the command itself gives `--root`, which Typer fills in from `PULSARPY_ROOT` otherwise."""
    return option not in (None, os.environ.get(ROOT_VARIABLE))


def root_place(argument: str | None, option: str | None) -> RootPlace:
    """Return the folder or URL of a command's root.

    Args:
        argument: The command's last argument; None if it is absent.
        option: The option `--root`, which Typer fills in from `PULSARPY_ROOT`; None if neither is given.

    Raises:
        InvalidArgumentError: no root is given, or two different ones.
    """
    if argument and is_in_command(option) and parse_place(argument) != parse_place(option):
        raise InvalidArgumentError(f"Two roots are given, {argument} and --root {option}: give one of them.")
    given = argument or option
    if given is None:
        raise InvalidArgumentError(
            f"No root is given: add its folder as the last argument or as --root, or set {ROOT_VARIABLE}."
        )
    return parse_place(given)


def open_root(argument: str | None, option: str | None) -> Root:
    """Open the root of a command (arguments and errors as `root_place`, and errors as `Root`)."""
    from pulsar_on_spark.root import Root

    return Root.open(root_place(argument, option))


def is_namespace(of: str) -> bool:
    """Return True if a name has the form of a namespace (`tenant/namespace`); False for a topic's name."""
    return of.count("/") == 1
