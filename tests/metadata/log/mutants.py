"""The rules of the metadata's log, each broken: (owner, name, broken) patches by the rule's name."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple

from pulsar_on_spark.metadata.log import chain, cleaning, opening, table_log
from pulsar_on_spark.metadata.log.chain import Answer, Fetch, News, Request, UnknownOutcomeError
from pulsar_on_spark.metadata.log.entry import Content, Entry, Tip
from pulsar_on_spark.metadata.log.table_log import TableLog


class Mutant(NamedTuple):
    """A broken rule."""

    name: str
    owner: Any
    attribute: str
    broken: Any


def _counts_at_once(tip: Tip, is_shared: bool = False) -> Generator[Request, Answer, News]:
    if False:
        yield Fetch(tip.version)
    return []


def _follows_blindly(tip: Tip, *, is_shared: bool = False) -> Generator[Request, Answer, News]:
    return (yield from chain._read_on(tip, is_shared))


def _unknown_is_failed(self: TableLog, token: str, after_version: int, error: UnknownOutcomeError) -> bool:
    with self._translated():
        self._open()
        return self._find(token, after_version)


def _unknown_is_done(self: TableLog, token: str, after_version: int, error: UnknownOutcomeError) -> bool:
    return True


def _no_conflict(entry: Entry, content: Content, is_shared: bool) -> None:
    pass


def _deletes_what_is_not_active(store: Any) -> int:
    active = opening.open_log(store).active()
    doomed = [name for name in cleaning._data_files(store) if name not in active]
    for name in doomed:
        store.objects.delete(name)
    return len(doomed)


MUTANTS: Final = (
    Mutant("an entry counts as soon as it was created", chain, "_confirmed", _counts_at_once),
    Mutant("a reader does not look whether the log goes on behind a gap", table_log, "follow", _follows_blindly),
    Mutant("a commit that is not found has failed", TableLog, "settle", _unknown_is_failed),
    Mutant("a commit without an answer is done", TableLog, "settle", _unknown_is_done),
    Mutant("commits under one key do not conflict", chain, "_check_conflict", _no_conflict),
    Mutant("data files that are not active are deleted", cleaning, "clean_data", _deletes_what_is_not_active),
)
"""Each is noticed by the simulator."""
