"""The object store over obstore, for S3, Google Cloud Storage and Azure.

obstore is configured to retry nothing. A client that repeats a conditional write turns its own success into
"precondition failed" (aws-sdk-java-v2, issue 6580), and obstore reports a conflict of two writers as "already exists"
although neither object exists (arrow-rs-object-store, issue 852). So after any failure of a write, a read decides:
the caller's content means success, other content means that another writer came first, and without an object the write
is tried again.
"""

from __future__ import annotations

import math
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from pulsar_on_spark.model.errors import InvalidArgumentError, ObjectsForbiddenError, ObjectsUnreachableError
from pulsar_on_spark.storage.daemon_calls import ENDING
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.objects.contract import Created, Exists, Fetched, Listed, Upload, Version
from pulsar_on_spark.storage.objects.meter import REQUESTS, Operation, Result, result_of

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode, WritableFile
    from obstore.store import ObjectStore as Obstore

PATIENCE_S: Final = 60.0
REFUSED_PATIENCE_S: Final = 10.0
"""Time in seconds for which all requests of a process together try again while a store refuses its credentials."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
REQUEST_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0
PART_BYTES: Final = 16 << 20
"""Size of a part of a large object; smaller objects are put in one request."""
PARTS_IN_FLIGHT: Final = 4
_PAGE: Final = 1_000
_BEYOND_THE_END: Final = "416"
_MAX_REFUSALS: Final = 64
_first_process: list[int] = []
"""The id of the process that first opened an object store; empty before that. A forked process inherits the id."""
_STATUS: Final = re.compile(r"status(?: code)?:? (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
"""The store's own name of an error, such as `ExpiredToken`."""
_ABSENT: Final = frozenset({"NoSuchKey", "BlobNotFound"})
"""Codes of status 404 that mean a missing object; all other codes mean a missing bucket or user."""
_PASSING: Final = frozenset({"408", "425", "429"})
"""Statuses of temporary refusals, such as too many requests."""

_ERRORS: Final = (BaseError, OSError)
"""Errors of obstore for a store that refuses a request or does not answer; other errors are mistakes of the caller."""

_RESULTS: Final = (
    (FileNotFoundError, Result.ABSENT),
    ((AlreadyExistsError, PreconditionError), Result.CONFLICT),
    ((PermissionDeniedError, UnauthenticatedError), Result.REFUSED),
)
"""Results by the kinds of errors that determine them."""

_T = TypeVar("_T")


class _GoneError(OSError):
    """The store answers, but lacks the identity object."""


class _Refusals:
    """The time limit for requests that a store refuses, such as for expired credentials, and when it began.

    All requests of a process with the same options share one limit. Otherwise a reader or writer that makes several
    requests before it fails would wait for the limit in each of them.
    """

    def __init__(self) -> None:
        self._first_s = self._last_s = -math.inf

    @property
    def end_s(self) -> float:
        """The time at which the limit ends, in monotonic seconds; infinite without a refusal."""
        return self._first_s + REFUSED_PATIENCE_S if self._last_s > -math.inf else math.inf

    def note(self, now_s: float) -> None:
        """Note a refusal at `now_s`, in monotonic seconds; over `PATIENCE_S` after the last one, the limit restarts."""
        if now_s - self._last_s > PATIENCE_S:
            self._first_s = now_s
        self._last_s = now_s

    def forget(self) -> None:
        """Note that a request was not refused, which ends the limit."""
        self._first_s = self._last_s = -math.inf


@lru_cache(maxsize=_MAX_REFUSALS)
def _refusals(bucket: str, options: frozenset[tuple[str, str]]) -> _Refusals:
    """Return the refusals that all requests to a bucket with these options share."""
    return _Refusals()


class RemoteObjects:
    """An object store behind a URL.

    Args:
        url: `s3://bucket/prefix`, `gs://bucket/prefix` or `abfss://container@account.dfs.core.windows.net/prefix`.
        options: Options by obstore's names, such as `aws_endpoint`; missing options come from the environment, as for
            the store's own tools.
        renewed_options: Called after a failed request; returns the options for the next request, because credentials
            may have expired. None to keep `options`.
        patience_s: Time in seconds for which a method tries before it raises `ObjectsUnreachableError`; None for
            `PATIENCE_S`. While the store refuses the credentials, all methods together try for `REFUSED_PATIENCE_S`.

    Raises:
        InvalidArgumentError: obstore does not know the URL or an option.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        *,
        renewed_options: Callable[[], Mapping[str, str]] | None = None,
        patience_s: float | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._renewed_options = renewed_options
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        if not _first_process:
            _first_process.append(os.getpid())
        self._use(options or {})

    def __repr__(self) -> str:
        return f"RemoteObjects({self.url!r})"

    def create(self, key: str, content: bytes) -> Created | Exists:
        """Put the object with `If-None-Match: *`; returns `Exists` if another writer's object exists."""

        def attempt() -> tuple[Created | Exists] | None:
            try:
                return (Created(self._put(key, content, "create")),)
            except _ERRORS:
                return self._settle_create(key, content)

        (answer,) = self._until_certain(f"write {key}", attempt)
        return answer

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        """Put the object with `If-Match`; returns its new version, None if it has another version or is deleted."""

        def attempt() -> tuple[Version | None] | None:
            try:
                return (self._put(key, content, _condition(version)),)
            except _ERRORS:
                return self._settle_replace(key, content, version)

        (written,) = self._until_certain(f"replace {key}", attempt)
        return written

    def fetch(self, key: str) -> Fetched | None:
        """Return the object's content and version; None if there is no object."""
        (fetched,) = self._until_certain(f"read {key}", lambda: (self._get(key),))
        return fetched

    def fetch_range(self, key: str, start: int, end: int) -> bytes | memoryview | None:
        """Return bytes [start, end) of the object; None if there is no object."""

        def attempt() -> tuple[bytes | memoryview | None]:
            try:
                with _counted(Operation.GET):
                    return (memoryview(obstore.get_range(self._store, key, start=start, end=end)),)
            except FileNotFoundError as error:
                _require_absent(error)
                return (None,)
            except _ERRORS as error:
                if _found(_STATUS, error) != _BEYOND_THE_END:
                    raise
                return (b"",)

        (content,) = self._until_certain(f"read {key}", attempt)
        return content

    def confirm_absent(self, key: str) -> bool:
        """Get the identity object, then the object; returns True if only the object is "not found"."""

        def attempt() -> tuple[bool]:
            self._require_identity()
            return (self._get(key) is None,)

        (is_absent,) = self._until_certain(f"look for {key}", attempt)
        return is_absent

    def list_after(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """Yield the objects page by page; after an error, continue after the last object."""
        while True:
            page = self._until_certain(f"list {prefix or 'everything'}", partial(self._page, prefix, after))
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].key

    def head(self, key: str) -> Listed | None:
        """Return the object's key, size, version and time; None if there is no object."""

        def attempt() -> tuple[Listed | None]:
            try:
                with _counted(Operation.HEAD):
                    return (_listed(obstore.head(self._store, key)),)
            except FileNotFoundError as error:
                _require_absent(error)
                return (None,)

        (listed,) = self._until_certain(f"look at {key}", attempt)
        return listed

    def upload(self, key: str) -> Upload:
        """Return a new upload, which puts the object in one request if it is small, else in parts."""
        _require_first_process(self.url)
        return _RemoteUpload(self, key)

    def put_whole(self, key: str, content: bytes) -> None:
        """Put an object that no other writer uses; after an unclear outcome, put the same object again."""

        def attempt() -> tuple[()]:
            with _counted(Operation.UPLOAD):
                obstore.put(self._store, key, content, use_multipart=False)
            return ()

        self._until_certain(f"write {key}", attempt)

    def open_writer(self, key: str) -> WritableFile:
        """Return the file of a new upload in parts; closing it completes the object."""
        return obstore.open_writer(self._uploads, key, buffer_size=PART_BYTES, max_concurrency=PARTS_IN_FLIGHT)

    def delete(self, key: str) -> None:
        """Delete the object, if it exists."""

        def attempt() -> tuple[()]:
            try:
                with _counted(Operation.DELETE):
                    obstore.delete(self._store, key)
            except FileNotFoundError as error:
                _require_absent(error)
            return ()

        self._until_certain(f"delete {key}", attempt)

    def _use(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._refusals = _refusals(urlsplit(self.url).netloc, frozenset(options.items()))
        self._store = _open(self.url, options, {"max_retries": 0})
        self._uploads = _open(self.url, options, {"retry_timeout": timedelta(seconds=self._patience_s)})

    def _renew(self) -> None:
        """Use the current options; if they are not valid, because they are just being written, keep the old ones."""
        if self._renewed_options is None:
            return
        with suppress(InvalidArgumentError):
            if (options := self._renewed_options()) != self._options:
                self._use(options)

    def _put(self, key: str, content: bytes, mode: PutMode) -> Version:
        with _counted(Operation.PUT):
            written = obstore.put(self._store, key, content, mode=mode, use_multipart=False)
        return Version(written["e_tag"], written["version"])

    def _get(self, key: str) -> Fetched | None:
        """Attempt `fetch` once; returns the content and version, None if there is no object."""
        try:
            with _counted(Operation.GET):
                answer = obstore.get(self._store, key)
                return Fetched(bytes(answer.bytes()), _version(answer.meta))
        except FileNotFoundError as error:
            _require_absent(error)
            return None

    def _settle_create(self, key: str, content: bytes) -> tuple[Created | Exists] | None:
        """Read the object to decide if a write succeeded; return None if there is no object."""
        present = self._get(key)
        if present is None:
            return None
        if present.content == content:
            return (Created(present.version),)
        return (Exists(present.content, present.version),)

    def _settle_replace(self, key: str, content: bytes, before: Version) -> tuple[Version | None] | None:
        """Read the object to decide if an overwrite succeeded; return None if the object is unchanged.

        Else return a tuple of the new version, or of None if another writer has changed or deleted the object.
        """
        present = self._get(key)
        if present is None:
            self._require_identity()
            return (None,)
        if present.content == content:
            return (present.version,)
        return None if present.version == before else (None,)

    def _require_identity(self) -> None:
        if self._get(IDENTITY_NAME) is None:
            raise _GoneError(f"it has no object {IDENTITY_NAME}")

    def _page(self, prefix: str, after: str) -> list[Listed]:
        with _counted(Operation.LIST):
            listing = obstore.list(self._store, prefix or None, offset=after or None, chunk_size=_PAGE)
            return [_listed(each) for each in next(iter(listing), [])]

    def _until_certain(self, what: str, attempt: Callable[[], _T | None]) -> _T:
        """Return the answer of an operation, which is repeated while it returns None or fails.

        Raises:
            ObjectsUnreachableError: the operation returned no answer within the time limit.
        """
        _require_first_process(self.url)
        began_s = time.monotonic()
        reason, is_forbidden = "the write was refused, and the object is not there", False
        for pause_s in _pauses():
            try:
                if (answer := attempt()) is not None:
                    self._refusals.forget()
                    return answer
            except _ERRORS as error:
                reason, is_forbidden = _reason(error), _is_forbidden(error)
                if _is_refusal(error):
                    self._refusals.note(time.monotonic())
                self._renew()
            if time.monotonic() + pause_s > min(began_s + self._patience_s, self._refusals.end_s):
                break
            if ENDING.wait(pause_s):
                break
        limit_s = min(self._patience_s, REFUSED_PATIENCE_S if self._refusals.end_s < math.inf else math.inf)
        raise unreachable(self.url, f"{what} in {limit_s:g} s", reason, is_forbidden=is_forbidden)


class _RemoteUpload:
    """An upload: a single part by `put_whole`, several parts by obstore, which may repeat their requests.

    A repeated request does no harm, because the object has only one writer.
    """

    def __init__(self, objects: RemoteObjects, key: str) -> None:
        self._objects = objects
        self._key = key
        self._size = 0
        self._first_part: list[bytes] = []
        self._writer: WritableFile | None = None

    def write(self, content: bytes) -> None:
        """Append to the current part; block while too many parts are in flight."""
        self._size += len(content)
        if self._writer is None:
            self._first_part.append(content)
            if self._size <= PART_BYTES:
                return
            self._writer = self._objects.open_writer(self._key)
            content = self._taken()
        with self._translated():
            self._writer.write(content)

    def finish(self) -> None:
        """Put the last part and complete the upload; an error is raised only if the object is not complete."""
        if self._writer is None:
            self._objects.put_whole(self._key, self._taken())
            return
        try:
            with self._translated(), _counted(Operation.UPLOAD):
                self._writer.close()
        except ObjectsUnreachableError:
            present = self._objects.head(self._key)
            if present is None or present.size != self._size:
                raise

    def abandon(self) -> None:
        """Drop the upload; obstore does not abort it at the store."""
        self._first_part, self._writer = [], None

    def _taken(self) -> bytes:
        content, self._first_part = b"".join(self._first_part), []
        return content

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            what, is_forbidden = f"write {self._key}", _is_forbidden(error)
            raise unreachable(self._objects.url, what, _reason(error), is_forbidden=is_forbidden) from error


def _require_first_process(url: str) -> None:
    """Check that this process was not forked from one that had opened an object store.

    In such a process, obstore would wait for ever for the threads of the parent process.

    Raises:
        ObjectsUnreachableError: it was.
    """
    if _first_process[0] != os.getpid():
        raise ObjectsUnreachableError(
            f"{url} cannot be used: this process was forked from process {_first_process[0]}, which had opened an "
            "object store; start processes with the method spawn or forkserver."
        )


@contextmanager
def _counted(operation: Operation) -> Iterator[None]:
    """Count the request that is sent in the context, by its result."""
    try:
        yield
    except _ERRORS as error:
        REQUESTS.count(operation, _result(error))
        raise
    REQUESTS.count(operation, Result.OK)


def _result(error: Exception) -> Result:
    for kinds, result in _RESULTS:
        if isinstance(error, kinds):
            return result
    status = _STATUS.search(str(error))
    return result_of(None if status is None else int(status[1]))


def unreachable(url: str, what: str, reason: str, *, is_forbidden: bool = False) -> ObjectsUnreachableError:
    """Return the error for a store without a certain answer; `what` is the operation, a verb and its object."""
    return (ObjectsForbiddenError if is_forbidden else ObjectsUnreachableError)(
        f"{url} could not {what} ({reason}): check the store, its endpoint and the credentials of this process, and "
        "try again."
    )


def _open(url: str, options: Mapping[str, str], retries: Mapping[str, Any]) -> Obstore:
    limits: Any = {"timeout": f"{REQUEST_TIMEOUT_S:g}s", "connect_timeout": f"{CONNECT_TIMEOUT_S:g}s"}
    if options.get("aws_endpoint", "").startswith("http://"):
        limits["allow_http"] = True
    try:
        return from_url(
            url, config=cast(Any, dict(options)), client_options=limits, retry_config=cast(Any, dict(retries))
        )
    except Exception as error:
        raise InvalidArgumentError(
            f"{url} cannot be used as an object store ({_reason(error)}): check the URL and the options of its profile."
        ) from error


def _pauses() -> Iterator[float]:
    """Yield growing random pauses in seconds, so that clients do not retry in step."""
    longest_s = FIRST_PAUSE_S
    while True:
        yield random.uniform(longest_s / 2, longest_s)
        longest_s = min(LONGEST_PAUSE_S, 2 * longest_s)


def _is_refusal(error: Exception) -> bool:
    """Return True if the store refuses the bucket, the user or the permission.

    A missing object is handled before, so here "not found" is about a bucket or a user.
    """
    return _result(error) in (Result.REFUSED, Result.ABSENT) and _found(_STATUS, error) not in _PASSING


def _is_forbidden(error: Exception) -> bool:
    """Return True if the store refuses the user or the permission."""
    return _is_refusal(error) and _result(error) is Result.REFUSED


def _condition(version: Version) -> PutMode:
    """Return the condition of an overwrite; obstore accepts no None for a field that the store does not have."""
    given = {"e_tag": version.etag, "version": version.generation}
    return cast("PutMode", {name: value for name, value in given.items() if value is not None})


def _listed(meta: ObjectMeta) -> Listed:
    return Listed(meta["path"], meta["size"], _version(meta), meta["last_modified"].timestamp())


def _version(meta: ObjectMeta) -> Version:
    return Version(meta["e_tag"], meta["version"])


def _require_absent(error: FileNotFoundError) -> None:
    """Check that "not found" is about the object, and not about a missing bucket or user.

    Raises:
        FileNotFoundError: the store names something else as missing: this raises `error`. An answer to HEAD names
            nothing, and counts as being about the object.
    """
    if _found(_CODE, error) not in (None, *_ABSENT):
        raise error


def _found(pattern: re.Pattern[str], error: Exception) -> str | None:
    """Return the first group of a pattern in an error's text; None if the pattern does not match."""
    match = pattern.search(str(error))
    return None if match is None else match[1]


def _reason(error: Exception) -> str:
    """Return an error's kind, HTTP status and code of the store, but not its text, which could hold a signed URL."""
    if isinstance(error, _GoneError):
        return str(error)
    status, code = _found(_STATUS, error), _found(_CODE, error)
    parts = (type(error).__name__, status and f"HTTP status {status}", code)
    return ", ".join(part for part in parts if part)
