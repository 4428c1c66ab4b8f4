"""Objects are requested several at once, and answered in the order in which they are asked for."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import cast

import pytest

from pulsar_on_spark.metadata.log import reading_ahead
from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.metadata.log.reading_ahead import ReadingAhead
from pulsar_on_spark.model.errors import ObjectsUnreachableError
from pulsar_on_spark.storage.objects.contract import Fetched, Version
from tests.kit.waiting import wait_until

KEYS = [f"k{number}" for number in range(8)]


class SlowObjects:
    """Objects whose requests wait for `go_on`; the object `absent` does not exist, and `bad` cannot be reached."""

    def __init__(self, *, absent: str = "", bad: str = "") -> None:
        self.asked: list[str] = []
        self.threads: set[str] = set()
        self.go_on = threading.Event()
        self._absent, self._bad = absent, bad

    def fetch(self, key: str) -> Fetched | None:
        self.asked.append(key)
        self.threads.add(threading.current_thread().name)
        self.go_on.wait(60)
        if key == self._bad:
            raise ObjectsUnreachableError(f"{key} is away")
        return None if key == self._absent else Fetched(key.encode(), Version(None))


def ahead(objects: SlowObjects, requests_at_once: int) -> ReadingAhead:
    store = SimpleNamespace(objects=objects, requests_at_once=requests_at_once)
    return ReadingAhead(cast(LogStore, store), KEYS)


def test_requests_are_in_flight_together_up_to_the_limit() -> None:
    objects = SlowObjects()
    reader = ahead(objects, 3)
    first: list[Fetched | None] = []
    thread = threading.Thread(target=lambda: first.append(reader.fetch("k0")))
    thread.start()
    wait_until(lambda: len(objects.asked) == 3)
    time.sleep(0.2)
    assert sorted(objects.asked) == KEYS[:3]
    objects.go_on.set()
    thread.join()
    found = [*first, *map(reader.fetch, KEYS[1:])]
    assert [each.content.decode() for each in found if each] == KEYS
    assert sorted(objects.asked) == KEYS, "each is requested once"


def test_an_object_that_is_not_expected_or_asked_for_again_is_read_alone() -> None:
    objects = SlowObjects(absent="k1")
    objects.go_on.set()
    reader = ahead(objects, 2)
    assert reader.fetch("other") == Fetched(b"other", Version(None))
    assert objects.asked == ["other"]
    assert reader.fetch("k0") == Fetched(b"k0", Version(None))
    assert reader.fetch("k1") is None
    before = len(objects.asked)
    assert reader.fetch("k1") is None
    assert objects.asked[before:] == ["k1"]


def test_an_error_is_that_of_its_own_object() -> None:
    objects = SlowObjects(bad="k2")
    objects.go_on.set()
    reader = ahead(objects, 8)
    assert [reader.fetch(key) for key in KEYS[:2]] == [Fetched(key.encode(), Version(None)) for key in KEYS[:2]]
    with pytest.raises(ObjectsUnreachableError, match="k2 is away"):
        reader.fetch("k2")
    assert reader.fetch("k3") == Fetched(b"k3", Version(None))


def test_a_process_has_a_limit_of_requests_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that an error has ended leave requests behind: others then read without requests ahead."""
    monkeypatch.setattr(reading_ahead, "_free_requests", threading.BoundedSemaphore(4))
    stuck = SlowObjects()
    thread = threading.Thread(target=lambda: ahead(stuck, 8).fetch("k0"))
    thread.start()
    wait_until(lambda: len(stuck.asked) == 4)
    objects = SlowObjects()
    objects.go_on.set()
    reader = ahead(objects, 8)
    assert [reader.fetch(key) for key in KEYS[:3]] == [Fetched(key.encode(), Version(None)) for key in KEYS[:3]]
    assert objects.asked == KEYS[:3]
    stuck.go_on.set()
    thread.join()
    wait_until(lambda: reading_ahead._free_requests._value == 4)
    reader.fetch("k3")
    wait_until(lambda: sorted(objects.asked) == KEYS)


def test_a_system_that_starts_no_more_threads_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    objects = SlowObjects()
    objects.go_on.set()
    reader = ahead(objects, 8)
    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", refuse)
        assert [reader.fetch(key) for key in KEYS[:2]] == [Fetched(key.encode(), Version(None)) for key in KEYS[:2]]
    assert objects.asked == KEYS[:2]
    assert reader.fetch("k2") == Fetched(b"k2", Version(None))
    wait_until(lambda: sorted(objects.asked) == KEYS)


def test_without_a_network_each_is_read_when_it_is_asked_for() -> None:
    objects = SlowObjects()
    objects.go_on.set()
    reader = ahead(objects, 1)
    reader.fetch("k0")
    reader.fetch("k1")
    assert objects.asked == ["k0", "k1"]
    assert objects.threads == {threading.current_thread().name}
