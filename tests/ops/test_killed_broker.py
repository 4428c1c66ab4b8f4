"""A broker is killed during admins' requests and its own housekeeping; the next one continues the work."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import httpx
import pytest

from pulsar_on_spark.root import Root
from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.broker.clients.test_durable import stored
from tests.kit.root_checks import violations
from tests.kit.running_broker import RunningBroker
from tests.ops.asked import ASKED, SENT, Site

pytestmark = pytest.mark.long

SOAK_KILLS = 100
"""While each was being done."""
KILLS_OF_A_TOPIC = 5
ROUNDS_OF_A_ROOT = 5
KEPT = "kept"
"""A topic that no request concerns."""
BUSY = {
    "retention_check_interval_in_seconds": 1,
    "message_expiry_check_interval_in_minutes": 0.01,
    "broker_service_compaction_monitor_interval_in_seconds": 1,
    "maintain_interval_s": 1,
}
"""The broker's upkeep never rests."""


class KilledBroker:
    """A root, and the broker that is killed on it.

    Attributes:
        kills: How many there were while something was being done, by its name.
    """

    def __init__(self, root: Path) -> None:
        print(f"seed {(seed := random.randrange(1 << 32))}")
        self.kills: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._root = root
        self._rounds = itertools.count()
        self._took_s: dict[str, float] = {}
        self._kept: list[bytes] = []
        self._start()

    def __enter__(self) -> KilledBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.shutdown()
        self._admin.close()
        self._broker.stop()

    def play(self, names: Iterable[str], kills: int) -> None:
        """Ask for these, each of a topic of its own; kill the broker so often, and ask the next one again."""
        number = next(self._rounds)
        topics = {name: f"{name}-{number}" for name in names}
        self._for_each(topics, lambda name, topic: self._site(topic).prepare(ASKED[name]))
        self._keep()
        for number in range(kills):
            self._ask_and_kill(topics, again=number > 0)
            assert violations(Root.open(self._root)) == []
            self._start()
        self._for_each(topics, lambda name, topic: self._ask(name, topic, again=True))
        self._for_each(topics, lambda name, topic: ASKED[name].judge(self._site(topic)))
        assert self._site(KEPT).stored() == [self._kept]
        for name, topic in topics.items():
            path = "/partitions?force=true" if ASKED[name].partitions else "?force=true"
            assert self._site(topic).ask("DELETE", path).status_code in (204, 404)

    def check_after_all(self) -> None:
        """The broker ends well, and Spark reads what it has acknowledged."""
        self._client.close()
        assert self._broker.stop() == 0
        root = Root.open(self._root)
        assert violations(root) == []
        assert stored(self._root, KEPT) == self._kept
        root.repair()
        status = root.status(verify=True)
        assert (status.missing_copies, status.bad_copies, status.losses) == (0, (), ())

    def _start(self) -> None:
        self._broker = RunningBroker(self._root, BUSY)
        self._client = new_client(self._broker.url)
        self._admin = httpx.Client(base_url=f"{self._broker.web_url}/admin/v2", timeout=WAIT_MS / 1000)

    def _ask_and_kill(self, topics: Mapping[str, str], *, again: bool) -> None:
        """All are begun so that the kill comes at any time of each."""
        span_s = max(self._took_s.get(name, 0.5) for name in topics)
        with ThreadPoolExecutor(len(topics)) as pool:
            asking = {name: pool.submit(self._ask_late, name, topic, span_s, again) for name, topic in topics.items()}
            time.sleep(span_s)
            self._kill()
        for name, asked in asking.items():
            error = asked.exception()
            if isinstance(error, httpx.TransportError):
                self.kills[name] += 1
            elif error is not None:
                raise error
            elif not again:
                self._took_s[name] = asked.result()

    def _kill(self) -> None:
        """With or without its processes, which end by themselves; that is waited for."""
        if self._rng.random() < 0.5:
            for child in _children(self._broker.pid):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        self._broker.kill()
        self._client.shutdown()
        self._admin.close()

    def _keep(self) -> None:
        producer = self._client.create_producer(KEPT)
        for value in SENT:
            producer.send(value)
            self._kept.append(value)
        producer.close()

    def _site(self, topic: str) -> Site:
        return Site(topic, self._client, self._admin)

    def _ask_late(self, name: str, topic: str, span_s: float, again: bool) -> float:
        time.sleep(span_s - self._rng.uniform(0, self._took_s.get(name, 0.5)))
        return self._ask(name, topic, again=again)

    def _ask(self, name: str, topic: str, *, again: bool) -> float:
        """Returns the seconds until it is done; raises `httpx.TransportError` where the broker is gone."""
        asked, site = ASKED[name], self._site(topic)
        began_s = time.monotonic()
        answer = site.ask(asked.method, asked.path, asked.body)
        assert answer.is_success or (again and answer.status_code == asked.again), (name, answer.text)
        while not asked.has_ended(site):
            assert time.monotonic() < began_s + WAIT_MS / 1000, name
            time.sleep(0.01)
        return time.monotonic() - began_s

    @staticmethod
    def _for_each(topics: Mapping[str, str], work: Callable[[str, str], object]) -> None:
        """All at once."""
        with ThreadPoolExecutor(len(topics)) as pool:
            working = {name: pool.submit(work, name, topic) for name, topic in topics.items()}
        for name, done in working.items():
            if (error := done.exception()) is not None:
                error.add_note(name)
                raise error


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in found for child in each.read_text().split()]


def test_a_broker_killed_during_admin_requests(tmp_path: Path) -> None:
    with KilledBroker(tmp_path / "root") as killed:
        killed.play(ASKED, kills=1)
        killed.check_after_all()


@pytest.mark.soak
def test_a_broker_killed_a_hundred_times_during_admin_requests(tmp_path: Path) -> None:
    kills: Counter[str] = Counter()
    while left := [name for name in ASKED if kills[name] < SOAK_KILLS]:
        with KilledBroker(tmp_path / str(kills.total())) as killed:
            for _ in range(ROUNDS_OF_A_ROOT):
                killed.play(left, KILLS_OF_A_TOPIC)
            killed.check_after_all()
        kills += killed.kills
        print(dict(kills))
