"""Options that several benches share."""

from __future__ import annotations

from collections.abc import Collection

import typer


def chosen(only: Collection[str] | None, known: Collection[str]) -> list[str]:
    """Return the measures that the option `--only` names, in its order, or all without it.

    Raises:
        BadParameter: one of them is not known.
    """
    if unknown := set(only or ()) - set(known):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))} cannot be measured: give {', '.join(known)}.", param_hint="--only"
        )
    return list(only or known)
