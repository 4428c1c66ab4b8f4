"""Tests that every object store must pass. Derive a test class from `ObjectStoreContract`, with a fixture `store`.

A store on S3 that also passes these tests behind `s3_faults.S3Faults`, with each fault in turn, handles lost replies
correctly.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise

from pulsar_on_spark.model.errors import ObjectsUnreachableError
from pulsar_on_spark.storage.objects.contract import Created, Exists, ObjectStore, Version

WRITERS = 8
PAGE = 1_000
"""Largest number of objects that stores return in one response to a listing."""
PIECE_BYTES = 8 << 20
"""Bytes of a piece of an upload. Three pieces exceed 16 MiB, above which stores upload an object in parts."""
UPLOAD_ATTEMPTS = 60
CLOCKS_APART_S = 600
"""Largest allowed difference between the store's clock and the test's clock, in seconds."""


def key() -> str:
    """Return a key that no other test uses."""
    return f"contract/{secrets.token_hex(8)}"


def created(store: ObjectStore, name: str, content: bytes) -> Version:
    """Create an object that does not exist, and return its version."""
    answer = store.create(name, content)
    assert isinstance(answer, Created)
    return answer.version


def uploaded(store: ObjectStore, pieces: Sequence[bytes]) -> str:
    """Upload an object from pieces, and return its key. After an error, try again under another key, as writers do."""
    for _ in range(UPLOAD_ATTEMPTS):
        name = key()
        upload = store.upload(name)
        try:
            for piece in pieces:
                upload.write(piece)
            assert store.fetch(name) is None, "an object that is not complete can be read"
            upload.finish()
        except ObjectsUnreachableError:
            upload.abandon()
        else:
            return name
    raise AssertionError(f"no upload of {UPLOAD_ATTEMPTS} was carried out")


class ObjectStoreContract:
    """Contract tests of an object store; `store` must have the identity object (`identity.IDENTITY_NAME`)."""

    def test_an_object_is_read_as_it_was_written(self, store: ObjectStore) -> None:
        name, content = key(), secrets.token_bytes(100_000)
        version = created(store, name, content)
        assert store.fetch(name) == (content, version)

    def test_an_empty_object_exists(self, store: ObjectStore) -> None:
        name = key()
        created(store, name, b"")
        fetched = store.fetch(name)
        assert fetched is not None
        assert fetched.content == b""

    def test_an_object_that_was_never_written_is_absent(self, store: ObjectStore) -> None:
        name = key()
        assert store.fetch(name) is None
        assert store.fetch_range(name, 0, 1) is None
        assert store.confirm_absent(name)

    def test_the_first_writer_of_a_key_keeps_it(self, store: ObjectStore) -> None:
        name = key()
        version = created(store, name, b"first")
        assert store.create(name, b"second") == Exists(b"first", version)
        assert store.fetch(name) == (b"first", version)
        assert not store.confirm_absent(name)

    def test_a_writer_recognises_its_own_object(self, store: ObjectStore) -> None:
        name = key()
        version = created(store, name, b"mine")
        assert store.create(name, b"mine") == Created(version)

    def test_one_of_many_racing_writers_wins(self, store: ObjectStore) -> None:
        name = key()
        contents = [secrets.token_bytes(16) for _ in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as threads:
            answers = list(threads.map(lambda content: store.create(name, content), contents))
        (winner,) = (content for content, answer in zip(contents, answers, strict=True) if isinstance(answer, Created))
        assert {answer.content for answer in answers if isinstance(answer, Exists)} == {winner}
        fetched = store.fetch(name)
        assert fetched is not None
        assert fetched.content == winner

    def test_an_object_is_replaced_by_the_reader_of_its_version(self, store: ObjectStore) -> None:
        name = key()
        first = created(store, name, b"1")
        second = store.replace(name, b"2", first)
        assert second is not None
        assert second != first
        assert store.fetch(name) == (b"2", second)

    def test_an_object_with_another_version_is_not_replaced(self, store: ObjectStore) -> None:
        name = key()
        first = created(store, name, b"1")
        second = store.replace(name, b"2", first)
        assert second is not None
        assert store.replace(name, b"3", first) is None
        assert store.fetch(name) == (b"2", second)

    def test_a_deleted_object_is_not_replaced(self, store: ObjectStore) -> None:
        name = key()
        version = created(store, name, b"1")
        store.delete(name)
        assert store.replace(name, b"2", version) is None
        assert store.fetch(name) is None

    def test_one_of_many_racing_replacements_wins(self, store: ObjectStore) -> None:
        name = key()
        version = created(store, name, b"before")
        contents = [secrets.token_bytes(16) for _ in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as threads:
            answers = list(threads.map(lambda content: store.replace(name, content, version), contents))
        ((winner, new),) = (each for each in zip(contents, answers, strict=True) if each[1] is not None)
        assert store.fetch(name) == (winner, new)

    def test_a_range_is_read(self, store: ObjectStore) -> None:
        name, content = key(), secrets.token_bytes(10_000)
        created(store, name, content)
        assert store.fetch_range(name, 17, 4_711) == content[17:4_711]
        assert store.fetch_range(name, 9_990, 20_000) == content[9_990:]

    def test_a_deleted_object_is_absent(self, store: ObjectStore) -> None:
        name = key()
        created(store, name, b"1")
        store.delete(name)
        assert store.fetch(name) is None
        assert [each.key for each in store.list_after(name)] == []

    def test_a_look_shows_size_and_version(self, store: ObjectStore) -> None:
        name = key()
        assert store.head(name) is None
        version = created(store, name, b"12345")
        looked = store.head(name)
        assert looked is not None
        assert looked[:3] == (name, 5, version)
        assert looked[:3] == next(store.list_after(name.rpartition("/")[0], name[:-1]))[:3]

    def test_an_upload_is_an_object_once_it_is_finished(self, store: ObjectStore) -> None:
        for pieces in ([], [b"small"], [secrets.token_bytes(PIECE_BYTES)] * 3):
            fetched = store.fetch(uploaded(store, pieces))
            assert fetched is not None
            assert fetched.content == b"".join(pieces)

    def test_an_upload_that_is_abandoned_leaves_no_object(self, store: ObjectStore) -> None:
        for size in (0, 1, 3):
            name = key()
            upload = store.upload(name)
            with suppress(ObjectsUnreachableError):
                for _ in range(size):
                    upload.write(secrets.token_bytes(PIECE_BYTES))
            upload.abandon()
            assert store.fetch(name) is None

    def test_deleting_an_absent_object_does_nothing(self, store: ObjectStore) -> None:
        store.delete(key())

    def test_a_listing_shows_what_was_just_written(self, store: ObjectStore) -> None:
        folder = key()
        for number in range(20):
            version = created(store, f"{folder}/{number:03}", b"x" * number)
            *_, last = store.list_after(folder)
            assert last[:3] == (f"{folder}/{number:03}", number, version)
            assert abs(last.written_s - time.time()) < CLOCKS_APART_S

    def test_a_listing_begins_behind_a_key(self, store: ObjectStore) -> None:
        folder = key()
        for number in range(5):
            created(store, f"{folder}/{number}", b"%d" % number)
        assert [each.key[-1] for each in store.list_after(folder, f"{folder}/2")] == ["3", "4"]
        assert [each.key[-1] for each in store.list_after(folder, f"{folder}/2x")] == ["3", "4"]
        assert list(store.list_after(folder, f"{folder}/4")) == []

    def test_a_listing_begins_behind_a_key_whose_folder_sorts_before_it(self, store: ObjectStore) -> None:
        folder = key()
        for name in ("a-b", "a/x", "a/y", "b"):
            created(store, f"{folder}/{name}", name.encode())
        for after, expected in (("a-b", ["a/x", "a/y", "b"]), ("a/x", ["a/y", "b"]), ("a0", ["b"])):
            keys = [each.key.removeprefix(f"{folder}/") for each in store.list_after(folder, f"{folder}/{after}")]
            assert keys == expected

    def test_a_listing_is_in_the_order_of_bytes(self, store: ObjectStore) -> None:
        folder = key()
        names = [f"{folder}/{name}" for name in ("a", "a-b", "a.b", "a0", "B", "\u00e9", "\uff21", "\U0001f600")]
        for name in names:
            created(store, name, name.encode())
        found = [each.key for each in store.list_after(folder)]
        assert found == sorted(names, key=str.encode)

    def test_a_listing_has_more_than_a_page(self, store: ObjectStore) -> None:
        folder = key()
        count = PAGE + 50
        with ThreadPoolExecutor(WRITERS) as threads:
            list(threads.map(lambda number: created(store, f"{folder}/{number:05}", b"%d" % number), range(count)))
        found = [each.key for each in store.list_after(folder)]
        assert len(found) == count
        assert all(first < second for first, second in pairwise(found))

    def test_a_prefix_is_made_of_whole_names(self, store: ObjectStore) -> None:
        folder = key()
        created(store, f"{folder}/a", b"inside")
        created(store, f"{folder}b", b"beside")
        assert [each.key for each in store.list_after(folder)] == [f"{folder}/a"]
