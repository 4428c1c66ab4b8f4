"""Runs of brokers that are disturbed again and again under load, and the judgement of what their clients saw.

No message with a receipt may be missing, be out of order, or be received again after its acknowledgement was confirmed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from tests.broker.clients.test_durable import stored
from tests.broker.cluster.disturbed.clients import CONFIRMED, SUBSCRIPTIONS_OF_PROGRAM, text_of
from tests.broker.cluster.disturbed.load import Load
from tests.broker.cluster.disturbed.topics import (
    MAX_MESSAGE_BYTES,
    MIXED,
    ORDERS,
    PARTITIONS,
    SPREAD,
    SUBSCRIPTIONS,
    message_of,
)
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.client_programs import Command
from tests.kit.history import (
    Acknowledged,
    Discarded,
    Expired,
    History,
    Message,
    Order,
    Received,
    Waiting,
    violations,
)
from tests.kit.network_cluster import NetworkCluster
from tests.kit.restarting_broker import RestartingBroker
from tests.kit.s3_server import S3Server, write_profile
from tests.kit.shifted_clocks import ShiftedCluster
from tests.kit.store_cluster import StoreCluster

_TOLD_AT_MOST = 20_000
"""Characters of output that an error shows."""

Disturbance = Literal["kill", "kill_all", "pause", "restart", "move", "upgrade", "cut", "outage", "unplug", "part"]
"""A method of `BrokerCluster`, or of `StoreCluster` or `NetworkCluster`."""
Brokers = Callable[[Mapping[str, object]], RestartingBroker | BrokerCluster]
"""Starts the brokers of a root with some settings."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of disturbances.

    Attributes:
        place: The root, which is made.
        folder: A folder for the clients' log.
        brokers: Starts the brokers.
        disturbance: How a broker is disturbed.
        times: The number of disturbances.
        deduplicated: True if producers are deduplicated.
        variables: Of the environment.
        programs: The commands of programs with clients of other languages, by their language.
    """

    place: Path | str
    folder: Path
    brokers: Brokers
    disturbance: Disturbance
    times: int
    deduplicated: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, Command] = field(default_factory=dict)

    def subscriptions(self) -> dict[str, Mapping[str, Order]]:
        """Return the promises of the subscriptions of each topic."""
        mixed = {
            f"{language}-{name}": order
            for language in self.programs
            for name, order in SUBSCRIPTIONS_OF_PROGRAM.items()
        }
        return SUBSCRIPTIONS | ({MIXED: mixed} if mixed else {})


def on_disk(folder: Path, disturbance: Disturbance, times: int, *, deduplicated: bool = True) -> Run:
    """Return a run of three brokers of a root in a folder."""
    root = folder / "root"
    return Run(root, folder, partial(BrokerCluster, root), disturbance, times, deduplicated)


def on_store(server: S3Server, folder: Path, disturbance: Disturbance, times: int, *, deduplicated: bool = True) -> Run:
    """Return a run of three brokers of a root on an S3 server; the folder is for profiles."""
    bucket, options = server.make_bucket(), server.options()
    root, profile = f"{bucket}/root", folder / "profile.toml"
    write_profile(profile, bucket, options)
    brokers = partial(StoreCluster, root, server.url, options, folder)
    return Run(root, folder, brokers, disturbance, times, deduplicated, {FILE_VARIABLE: str(profile)})


def on_network(folder: Path, disturbance: Disturbance, times: int, *, deduplicated: bool = True) -> Run:
    """Return a run of three brokers of a root in a folder, each in a network namespace."""
    root = folder / "root"
    return Run(root, folder, partial(NetworkCluster, root), disturbance, times, deduplicated)


def with_other_clocks(folder: Path, disturbance: Disturbance, times: int, *, deduplicated: bool = True) -> Run:
    """Return a run of three brokers of a root in a folder, whose clocks differ by hours."""
    root = folder / "root"
    return Run(root, folder, partial(ShiftedCluster, root), disturbance, times, deduplicated)


def judge(run: Run) -> str:
    """Disturb brokers under producers and consumers of some topics, and check what they noted.

    The clients are in a process of their own: the first client of a process decides where all clients log to.

    Returns:
        Counts of what they noted.

    Raises:
        AssertionError: a promise was broken.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_disturb, run).result()


def _disturb(run: Run) -> str:
    os.environ.update(run.variables)
    Root.create(run.place).create_topic(SPREAD, partitions=PARTITIONS)
    settings = {"broker_deduplication_enabled": run.deduplicated, "max_message_size": MAX_MESSAGE_BYTES}
    with (
        run.brokers(settings) as broker,
        telling(broker, run.folder),
        Load(broker, run.subscriptions(), run.folder) as load,
    ):
        load.start(run.programs, lambda: CONFIRMED.keys() <= _subscriptions_of(run.place))
        slowest_s = max(load.disturb(getattr(broker, run.disturbance)) for _ in range(run.times))
        load.end()
        kept = load.read_all()
        assert broker.stop() == 0, "a broker has ended before, or with an error"
        counts = _counts(load.histories, kept)
        found = _violations(run, load.histories, kept)
        assert not found, f"{len(found)} violations, {found[:10]}, {counts}"
    return f"{counts}; the slowest disturbance, with up to 300 messages before it: {slowest_s:.0f} s"


@contextmanager
def telling(broker: RestartingBroker | BrokerCluster, folder: Path) -> Iterator[None]:
    """Add to an error, which another process may show, the ends of the brokers' output and of the clients' logs."""
    try:
        yield
    except Exception as error:
        texts = (broker.said, *map(text_of, folder.glob("*.log")))
        error.add_note("\n".join(text[-_TOLD_AT_MOST:] for text in texts))
        raise


def _violations(run: Run, histories: Mapping[str, History], kept: Mapping[str, list[list[Message]]]) -> list[str]:
    """Return the broken promises to clients, and what Spark reads other than clients do."""
    found = [
        each
        for topic, subscriptions in run.subscriptions().items()
        for each in violations(histories[topic].events(), subscriptions, kept[topic], run.deduplicated)
    ]
    if [[message_of(value or b"") for value in stored(run.place, ORDERS)]] != kept[ORDERS]:
        found.append(f"Spark and a client read other messages of {ORDERS}")
    confirmed = Counter(each.subscription for each in histories[ORDERS].events() if isinstance(each, Acknowledged))
    found += [
        f"{name} confirmed {confirmed[name]} acknowledgements" for name in CONFIRMED if confirmed[name] <= run.times
    ]
    return found


def _counts(histories: Mapping[str, History], kept: Mapping[str, list[list[Message]]]) -> str:
    """Counts of events in the run."""
    stored_counts = Counter(
        message for partitions in kept.values() for partition in partitions for message in partition
    )
    counts = Counter(type(event) for history in histories.values() for event in history.events())
    return (
        f"{len(stored_counts)} messages stored, {stored_counts.total() - len(stored_counts)} of them again; "
        f"received {counts[Received]} times; {counts[Acknowledged]} confirmed acknowledgements; "
        f"{counts[Discarded]} discarded and {counts[Expired]} given up by the client, "
        f"{counts[Waiting]} left to a new consumer"
    )


def _subscriptions_of(root: Path | str) -> set[str]:
    return {record.name for record in Root.open(root).store.view().all(SubscriptionRecord)}
