"""The rules of a log that several writers extend: decisions without IO, as generators that request the log's objects.

A writer creates its entry under the next number, if no object has that number, and the entry names the token of the
entry before it. This alone does not commit the entry. A writer that was suspended before its request may create an
entry under a number that was in use and has been cleaned up, where no reader would ever see it. So a writer lists the
log after it has created its entry. The entry is committed if no later entry exists, or if all later entries up to the
newest exist and each of them names the token of the entry before it. Otherwise the outcome is unknown until the log was
read again.

A shared log also has entries of other programs, which name no predecessor. Such an entry belongs to the chain if its
number is the next one. Its token is a checksum of its content. A writer decides again if such an entry came first.

`requests.run` answers the requests, and throws `ObjectsUnreachableError` if it has no certain answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, TypeAlias

from pulsar_on_spark.metadata.log.entry import BrokenEntryError, Content, Entry, Tip, decode_entry
from pulsar_on_spark.model.errors import ObjectsUnreachableError

MAX_OVERTAKEN: Final = 100
"""Maximum number of other writers' entries after which a commit may be put; above it, the commit is decided again.
Every clean-up keeps more entries, so it does not delete the data file of a commit whose entry may still come."""


@dataclass(frozen=True, slots=True)
class Create:
    """Request to create an entry if it is absent. The answer is None if it was created, else the existing content."""

    version: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """Request to read an entry. The answer is the entry's content, or None if it is absent."""

    version: int


@dataclass(frozen=True, slots=True)
class ListBehind:
    """Request to list the entries after a version. The answer is True if there are any."""

    version: int


Request: TypeAlias = Create | Fetch | ListBehind
Answer: TypeAlias = bytes | bool | None


class ConflictError(Exception):
    """An entry of another writer conflicts with the commit, for example by the same key. Nothing was committed."""


class OvertakenError(Exception):
    """The log was cleaned up or replaced after it was read, so the reader must open it again."""


class GapError(OvertakenError):
    """The next entry is missing, although later entries exist: it was cleaned up, or is lost.

    Attributes:
        version: The number of the missing entry.
    """

    def __init__(self, version: int) -> None:
        super().__init__(f"entry {version} is missing")
        self.version = version


class EntryError(Exception):
    """An entry cannot be used, or its commit has an unknown outcome.

    Attributes:
        version: The entry's number.
    """

    def __init__(self, version: int) -> None:
        super().__init__(f"entry {version}")
        self.version = version


class UnknownOutcomeError(EntryError):
    """It is unknown whether an entry was committed, or may still be; `version` is its number in the last request."""


class ForeignEntryError(EntryError):
    """Another program has written the entry."""


class DamagedEntryError(EntryError):
    """The entry's content differs from the written one."""


Encode: TypeAlias = Callable[[str], bytes]
"""Function that encodes an entry; its argument is the token of the entry before it."""
News: TypeAlias = list[Entry]
"""The entries that are new to a reader, in order."""


def follow(tip: Tip, *, is_shared: bool = False) -> Generator[Request, Answer, News]:
    """Return the entries after `tip`, the last entry that was read, to the end of the log.

    `is_shared` is True if other programs may write to the log, too. A clean-up always keeps the newest entries, so the
    log ends where a listing shows no more entries. The presence of the entry `tip` would prove less: after a clean-up,
    a late repetition of its request may have created it again.

    Raises:
        GapError: the next entry is missing, although later entries exist.
        OvertakenError: the next entry does not follow `tip`.
        ForeignEntryError, DamagedEntryError: an entry cannot be used.
    """
    news: News = []
    while (yield ListBehind(tip.version)):
        more = yield from _read_on(tip, is_shared)
        if not more:
            raise GapError(tip.version + 1)
        news += more
        tip = more[-1].tip
    return news


def append(
    tip: Tip, encode: Encode, content: Content, token: str, *, is_shared: bool = False
) -> Generator[Request, Answer, News]:
    """Append an entry after the newest entry.

    If other writers' entries came first, the entry is put after them, unless they moved one of its keys, removed files
    or changed the schema.

    Args:
        tip: The last entry that the caller has read.
        encode: Encodes the entry.
        content: The entry's actions.
        token: The entry's token.
        is_shared: True if other programs may write to the log, too.

    Returns:
        The entries after `tip`, among them the caller's.

    Raises:
        ConflictError: another writer's entry conflicts, or too many entries came first; nothing was committed.
        OvertakenError: the log was cleaned up or replaced; nothing was committed.
        UnknownOutcomeError: the entry may or may not be in the log; look for its token.
        ForeignEntryError, DamagedEntryError: an entry of the log cannot be used; nothing was committed.
    """
    news: News = []
    while len(news) <= MAX_OVERTAKEN:
        entry = yield from _put(tip, encode, is_shared)
        news.append(entry)
        tip = entry.tip
        if entry.token == token:
            return news + (yield from _confirmed(tip, is_shared))
        _check_conflict(entry, content, is_shared)
    raise ConflictError(f"{len(news)} other entries came first")


def settle(tip: Tip, encode: Encode, version: int, token: str) -> Generator[Request, Answer, bool]:
    """Decide the outcome of a commit whose request may still arrive: create an empty entry under the request's number.

    Args:
        tip: The newest entry of the log, read after the outcome became unknown.
        encode: Encodes an entry without actions.
        version: The number of the commit's last request, which is the number after `tip`.
        token: The commit's token.

    Returns:
        True if the commit's entry is in the log; False if it can no longer get there.

    Raises:
        OvertakenError: `version` is not the number after `tip`: read the log again.
        UnknownOutcomeError: the store gives no certain answer.
    """
    if tip.version + 1 != version:
        raise OvertakenError(f"entry {version} does not follow entry {tip.version}")
    entry = yield from _put(tip, encode)
    yield from _confirmed(entry.tip)
    return entry.token == token


def _put(tip: Tip, encode: Encode, is_shared: bool = False) -> Generator[Request, Answer, Entry]:
    """Create the entry after `tip` if it is absent; return the entry that then is after `tip`."""
    version, text = tip.version + 1, encode(tip.token)
    try:
        present = yield Create(version, text)
    except ObjectsUnreachableError as error:
        raise UnknownOutcomeError(version) from error
    return _linked(version, text if present is None else _bytes(present), tip, is_shared)


def _confirmed(tip: Tip, is_shared: bool = False) -> Generator[Request, Answer, News]:
    """Check that a newly created entry `tip` is committed; return the entries after it."""
    try:
        return (yield from follow(tip, is_shared=is_shared))
    except (ObjectsUnreachableError, OvertakenError, ForeignEntryError, DamagedEntryError) as error:
        raise UnknownOutcomeError(tip.version) from error


def _read_on(tip: Tip, is_shared: bool) -> Generator[Request, Answer, News]:
    news: News = []
    while (content := (yield Fetch(tip.version + 1))) is not None:
        entry = _linked(tip.version + 1, _bytes(content), tip, is_shared)
        news.append(entry)
        tip = entry.tip
    return news


def _linked(version: int, content: bytes, tip: Tip, is_shared: bool) -> Entry:
    """Decode an entry, and check that it follows `tip`."""
    try:
        entry = decode_entry(version, content, is_shared=is_shared)
    except BrokenEntryError as error:
        raise DamagedEntryError(version) from error
    if entry.previous is None and tip.is_chained and not is_shared:
        raise ForeignEntryError(version)
    if entry.previous not in (None, tip.token):
        raise OvertakenError(f"entry {version} follows another than the entry {tip.version} that was read")
    return entry


def _bytes(answer: Answer) -> bytes:
    assert isinstance(answer, bytes)
    return answer


def _check_conflict(entry: Entry, content: Content, is_shared: bool) -> None:
    """Check that a commit may be put behind another writer's entry.

    Raises:
        ConflictError: the entry moved a key of the commit, has removed files, or has changed the table's schema; or
            another program has written it.
    """
    is_foreign = is_shared and entry.previous is None
    if is_foreign or entry.removed or entry.head or not entry.keys.keys().isdisjoint(content.keys):
        raise ConflictError(f"entry {entry.version} came first")
