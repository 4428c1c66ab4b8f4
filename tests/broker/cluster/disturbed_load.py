"""Producers and consumers of a root whose brokers are disturbed again and again; a judge reads what they saw.

Clients of all subscription types reconnect by themselves, and note receipts, messages and confirmed acknowledgements.
No message with a receipt may be missing, be out of order, or be received again after its acknowledgement was confirmed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from typing import Literal

import pulsar

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAck,
    CommandSubscribe,
    MessageIdData,
)
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from tests.broker.clients.conftest import new_client
from tests.broker.clients.raw import answer_and_entry, command, consuming
from tests.broker.clients.raw_chunks import large_messages
from tests.broker.clients.test_durable import stored
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.client_programs import ClientProgram, Command
from tests.kit.history import (
    ANY,
    BY_KEY,
    ORDERED,
    Acknowledged,
    Discarded,
    Expired,
    History,
    Message,
    Order,
    Received,
    Restarted,
    Sent,
    Waiting,
    violations,
)
from tests.kit.network_cluster import NetworkCluster
from tests.kit.pulsar_entries import read_entry
from tests.kit.restarting_broker import RestartingBroker
from tests.kit.s3_server import S3Server, write_profile
from tests.kit.shifted_clocks import ShiftedCluster
from tests.kit.store_cluster import StoreCluster
from tests.kit.waiting import wait_until

TOPIC, SPREAD, LARGE = "orders", "spread", "large"
MIXED = "mixed"
"""The topic of the Go and Java clients, which all receive what both have sent."""
WHOLE = "whole"
PARTITIONS = 3
KEYS = 7
SUBSCRIPTIONS: dict[str, Mapping[str, Order]] = {
    TOPIC: {
        "exclusive": ORDERED,
        "failover": ORDERED,
        "shared": ANY,
        "batches": ANY,
        "keys": BY_KEY,
        "confirmed": ORDERED,
        "confirmed up to": ORDERED,
        "confirmed one by one": ANY,
    },
    SPREAD: {"each partition": BY_KEY},
    LARGE: {WHOLE: ORDERED},
}
CONFIRMED = {
    "confirmed": (CommandSubscribe.Exclusive, CommandAck.Individual),
    "confirmed up to": (CommandSubscribe.Failover, CommandAck.Cumulative),
    "confirmed one by one": (CommandSubscribe.Shared, CommandAck.Individual),
}
"""Subscriptions of which each acknowledgement's receipt is waited for; a Shared one's are of a batch's indexes."""
CONSUMERS = [
    (TOPIC, "exclusive", pulsar.ConsumerType.Exclusive),
    (TOPIC, "failover", pulsar.ConsumerType.Failover),
    (TOPIC, "failover", pulsar.ConsumerType.Failover),
    (TOPIC, "shared", pulsar.ConsumerType.Shared),
    (TOPIC, "shared", pulsar.ConsumerType.Shared),
    (TOPIC, "batches", pulsar.ConsumerType.Shared),
    (TOPIC, "keys", pulsar.ConsumerType.KeyShared),
    (TOPIC, "keys", pulsar.ConsumerType.KeyShared),
    (SPREAD, "each partition", pulsar.ConsumerType.Exclusive),
    (LARGE, WHOLE, pulsar.ConsumerType.Exclusive),
]
PRODUCERS = {"plain": TOPIC, "batched": TOPIC, "keyed": TOPIC, "spread": SPREAD, "chunked": LARGE}
SUBSCRIPTIONS_OF_PROGRAM: Mapping[str, Order] = {"failover": ORDERED, "keys": BY_KEY}
PRODUCERS_OF_PROGRAM = 2
GRANT = 4
"""Messages that a producer of a program may send in 50 ms."""
MAX_MESSAGE_BYTES = 20_000
PADDING = b"." * (2 * MAX_MESSAGE_BYTES)
"""Makes three chunks of a message."""
PAUSE_S = 0.005
"""Between two sends of a producer: the load is that of slow machines, too. Chunked ones are rarer."""
MAX_BEHIND = 2_000
"""Messages that producers send ahead of their receipts, and of the slowest subscription: the kills come too fast for
consumers that begin again with a growing backlog each time."""
END_S = 120
"""For anything, but the end of the last backlog: that may take as long as there is progress."""
TOLD_AT_MOST = 20_000
"""Characters of output that an error shows."""
THE_END = b"the end"
"""The last message of the topic with large messages; the history does not check it."""
DROPPED: Mapping[type[Discarded | Expired], re.Pattern[str]] = {
    Discarded: re.compile(r"Received a chunk whose chunk id is invalid \(uuid: chunked-(\d+) "),
    Expired: re.compile(r"Removing expired chunk messages: uuid: chunked-(\d+),"),
}
"""Log lines of `pulsar-client`: it drops a message whose first chunk is redelivered (`raw_chunks`), and acknowledges
what it has of a message whose chunks have not all come in one to two minutes."""


def value_of(message: Message) -> bytes:
    return f"{message.producer} {message.number} {message.key}".encode()


def message_of(value: bytes) -> Message:
    producer, number, key, *_ = value.decode().split(" ")
    return Message(producer, int(number), key)


def produce(client: pulsar.Client, name: str, history: History, ended: threading.Event) -> None:
    """Send until told to stop, a number at a time; returns when all have their outcome."""
    is_chunked = name == "chunked"
    outcomes: list[pulsar.Result] = []

    def on_outcome(sent: Message, result: pulsar.Result) -> None:
        outcomes.append(result)
        history.note(Sent(sent, stored=result == pulsar.Result.Ok))

    # Batches would mix keys; Key_Shared distinguishes them by entry.
    producer = client.create_producer(
        PRODUCERS[name],
        name,
        send_timeout_millis=0,
        # The C++ client blocks for good where chunks fill its queue while it is not connected.
        max_pending_messages=100_000,
        max_pending_messages_across_partitions=PARTITIONS * 100_000,
        block_if_queue_full=True,
        batching_enabled=name == "batched",
        chunking_enabled=is_chunked,
    )
    for number in itertools.count(1):
        while not ended.is_set() and (
            number - len(outcomes) > MAX_BEHIND or history.behind(SUBSCRIPTIONS[PRODUCERS[name]]) > MAX_BEHIND
        ):
            time.sleep(PAUSE_S)
        if ended.is_set():
            break
        message = Message(name, number, f"k{number % KEYS}" if name in ("keyed", "spread") else "")
        history.note(Sent(message, stored=False))
        producer.send_async(
            value_of(message) + (b" " + PADDING if is_chunked else b""),
            lambda result, _, sent=message: on_outcome(sent, result),
            partition_key=message.key or None,
            sequence_id=number,
        )
        time.sleep(PAUSE_S * (20 if is_chunked else 1))
    producer.flush()
    producer.close()


def consume(
    client: pulsar.Client, topic: str, subscription: str, type_: pulsar.ConsumerType, history: History
) -> pulsar.Consumer:
    """Note and acknowledge what comes, in the client's own thread."""

    def on_message(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        history.note(Received(subscription, message_of(message.data())))
        consumer.acknowledge(message)

    return client.subscribe(
        topic,
        subscription,
        type_,
        initial_position=pulsar.InitialPosition.Earliest,
        message_listener=on_message,
        batch_index_ack_enabled=subscription == "batches",
    )


async def confirm(url_of: Callable[[str], str], subscription: str, history: History) -> None:
    """A consumer that waits for the receipt of each acknowledgement, which the Python client cannot."""
    while True:
        try:
            await _confirm(await asyncio.to_thread(url_of, TOPIC), subscription, history)
        except (OSError, EOFError):
            # The broker is gone, the consumer before is still being missed, or the topic is not there yet.
            await asyncio.sleep(0.1)


async def _confirm(url: str, subscription: str, history: History) -> None:
    type_, ack_type = CONFIRMED[subscription]
    reader, writer = await consuming(url, TOPIC, subscription, type_)
    asked: dict[int, list[Message]] = {}
    requests = itertools.count(2)
    while True:
        said, entry = await answer_and_entry(reader)
        match said.type:
            case BaseCommand.MESSAGE:
                messages = [message_of(each.value or b"") for each in read_entry(entry)]
                given = indexes(said.message.ack_set, len(messages))
                for index in given:
                    history.note(Received(subscription, messages[index]))
                is_by_index = type_ == CommandSubscribe.Shared and len(messages) > 1
                for acked in [[index] for index in given] if is_by_index else [given]:
                    asked[request := next(requests)] = [messages[index] for index in acked]
                    where = MessageIdData(
                        ledgerId=said.message.message_id.ledgerId,
                        entryId=said.message.message_id.entryId,
                        ack_set=all_but(acked[0], len(messages)) if is_by_index else (),
                    )
                    ack = CommandAck(consumer_id=1, ack_type=ack_type, message_id=[where], request_id=request)
                    if not writer.is_closing():
                        writer.write(command("ACK", ack=ack))
            case BaseCommand.ACK_RESPONSE:
                for message in asked.pop(said.ackResponse.request_id):
                    if not said.ackResponse.HasField("error"):
                        history.note(Acknowledged(subscription, message))
            case BaseCommand.ERROR | BaseCommand.CLOSE_CONSUMER:
                writer.close()
                raise EOFError(said)
            case _:
                pass


def indexes(ack_set: Sequence[int], count: int) -> list[int]:
    """The messages of a batch that a delivery is about: those whose bits are set, or all."""
    return [index for index in range(count) if not ack_set or ack_set[index // 64] >> index % 64 & 1]


def all_but(index: int, count: int) -> list[int]:
    """The words, as signed numbers, of a batch in which one message is acknowledged."""
    bits = ((1 << count) - 1) & ~(1 << index)
    words = bits.to_bytes(-(-count // 64) * 8, "little")
    return [int.from_bytes(words[at : at + 8], "little", signed=True) for at in range(0, len(words), 8)]


def note_line(history: History, word: str, rest: str) -> None:
    """Note what a program says."""
    if word == "received":
        subscription, _, value = rest.partition(" ")
        history.note(Received(subscription, message_of(value.encode())))
    else:
        history.note(Sent(message_of(rest.encode()), stored=word == "stored"))


def grant(programs: Sequence[ClientProgram], history: History, subscriptions: Iterable[str], ended: Event) -> None:
    """Let programs send until told to stop, and wait for their receipts."""
    while not ended.wait(0.05):
        unstored = sum(PRODUCERS_OF_PROGRAM * program.granted for program in programs) - history.stored_count()
        if max(unstored, history.behind(subscriptions)) <= MAX_BEHIND:
            for program in programs:
                program.grant(GRANT)
    for program in programs:
        program.end_sending()


def note_dropped(log: Path, history: History, noted: set[Discarded | Expired]) -> None:
    """Note what the client that reads the large messages says to have dropped."""
    text = text_of(log)
    said = {
        kind(WHOLE, Message("chunked", int(number))) for kind, line in DROPPED.items() for number in line.findall(text)
    }
    for event in said - noted:
        history.note(event)
    noted |= said


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


def disturb(run: Run) -> str:
    """Disturb brokers under producers and consumers of some topics, and check what they noted.

    Returns:
        Counts of what they noted.

    Raises:
        AssertionError: a promise was broken.
    """
    os.environ.update(run.variables)
    place = run.place
    subscriptions = run.subscriptions()
    histories = {topic: History() for topic in subscriptions}
    settings = {"broker_deduplication_enabled": run.deduplicated, "max_message_size": MAX_MESSAGE_BYTES}
    Root.create(place).create_topic(SPREAD, partitions=PARTITIONS)
    with ExitStack() as at_end:
        broker = at_end.enter_context(run.brokers(settings))
        log = run.folder / "client.log"
        at_end.enter_context(telling(broker, run.folder))
        # Not a Python logger: the client would call it at any time, also when the interpreter ends.
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(log))
        reading_large = pulsar.Client(broker.url, operation_timeout_seconds=END_S, logger=logger)
        clients = [reading_large, *(new_client(broker.url, timeout_s=END_S) for _ in range(2))]
        for client in clients:
            at_end.callback(client.shutdown)  # close would wait for what never comes
        all_read, enough = threading.Event(), threading.Event()
        at_end.callback(all_read.set)
        at_end.callback(enough.set)
        for topic, name, type_ in CONSUMERS:
            consume(clients[0 if type_ == pulsar.ConsumerType.Exclusive else 1], topic, name, type_, histories[topic])
        programs = list(start_programs(run, broker.url, histories, at_end))
        work = [confirm(broker.url_of, name, histories[TOPIC]) for name in CONFIRMED]
        confirming = threading.Thread(target=asyncio.run, args=(until(all_read, work),))
        confirming.start()
        wait_until(lambda: CONFIRMED.keys() <= subscriptions_of(place), "the confirming consumers' subscriptions")
        producing = start_producing(clients[2], programs, histories, subscriptions, enough)
        slowest_s = 0.0
        for _ in range(run.times):
            began_s = time.monotonic()
            wait_for_progress(histories[TOPIC], random.randrange(20, 300), TOPIC)
            getattr(broker, run.disturbance)()
            for history in histories.values():
                history.note(Restarted())
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        for topic, history in histories.items():
            wait_for_progress(history, 1, topic)
        enough.set()
        for thread in producing:
            thread.join(END_S)
        reading = [(histories[topic], name) for topic, names in subscriptions.items() for name in names]
        dropped: set[Discarded | Expired] = set()

        def is_settled() -> bool:
            note_dropped(log, histories[LARGE], dropped)
            return all(history.is_settled(name) for history, name in reading)

        settle(is_settled, lambda: [history.behind(subscriptions[topic]) for topic, history in histories.items()])
        all_read.set()
        confirming.join(END_S)
        for client in clients[:2]:
            client.close()
        for program in programs:
            program.close()
        note_dropped(log, histories[LARGE], dropped)
        kept = {topic: kept_in(clients[2], topic) for topic in subscriptions if topic != LARGE}
        clients[2].create_producer(LARGE).send(THE_END)
        clients[2].close()
        whole, ends = large_ones(broker.url_of(LARGE), WHOLE)
        expired = {event.message for event in dropped if isinstance(event, Expired)}
        for message in {*whole, *(ends & expired)}:
            histories[LARGE].note(Waiting(WHOLE, message))
        everything_large, _ = large_ones(broker.url_of(LARGE), "all of them")
        kept[LARGE] = [everything_large]
        assert broker.stop() == 0
        found = judged(histories, subscriptions, kept, run.deduplicated)
        assert not found, f"{len(found)} violations, {found[:10]}, {told(histories, kept)}"
        in_spark = [message_of(value or b"") for value in stored(place, TOPIC)]
        assert [in_spark] == kept[TOPIC]
        for name in CONFIRMED:
            confirmed = [each for each in histories[TOPIC].events() if isinstance(each, Acknowledged)]
            assert sum(each.subscription == name for each in confirmed) > run.times
    return f"{told(histories, kept)}; the slowest disturbance, with up to 300 messages before it: {slowest_s:.0f} s"


def start_programs(run: Run, url: str, histories: Mapping[str, History], at_end: ExitStack) -> Iterator[ClientProgram]:
    for program in run.programs.values():
        log, note = run.folder / "programs.log", partial(note_line, histories[MIXED])
        yield at_end.enter_context(ClientProgram(program, url, MIXED, log, note))


def start_producing(
    client: pulsar.Client,
    programs: Sequence[ClientProgram],
    histories: Mapping[str, History],
    subscriptions: Mapping[str, Mapping[str, Order]],
    enough: Event,
) -> list[threading.Thread]:
    """Start threads that send until there is enough, and end when all messages have their outcome."""
    work = [partial(produce, client, name, histories[topic], enough) for name, topic in PRODUCERS.items()]
    if programs:
        work.append(partial(grant, programs, histories[MIXED], subscriptions[MIXED], enough))
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    return threads


@contextmanager
def telling(broker: RestartingBroker | BrokerCluster, folder: Path) -> Iterator[None]:
    """Add to an error, which another process may show, the ends of the brokers' output and of the clients' logs."""
    try:
        yield
    except Exception as error:
        texts = (broker.said, *map(text_of, folder.glob("*.log")))
        error.add_note("\n".join(text[-TOLD_AT_MOST:] for text in texts))
        raise


def text_of(log: Path) -> str:
    """Read a log of a client, which may show bytes that are no text."""
    return log.read_text(errors="backslashreplace")


def judged(
    histories: Mapping[str, History],
    subscriptions: Mapping[str, Mapping[str, Order]],
    kept: Mapping[str, list[list[Message]]],
    deduplicated: bool,
) -> list[str]:
    return [
        each
        for topic, history in histories.items()
        for each in violations(history.events(), subscriptions[topic], kept[topic], deduplicated)
    ]


def told(histories: Mapping[str, History], kept: Mapping[str, list[list[Message]]]) -> str:
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


def kept_in(client: pulsar.Client, topic: str) -> list[list[Message]]:
    """All that each partition of a topic holds, read from its beginning."""
    return [everything(client, partition) for partition in client.get_topic_partitions(topic)]


def everything(client: pulsar.Client, partition: str) -> list[Message]:
    reader = client.create_reader(partition, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(message_of(reader.read_next(END_S * 1000).data()))
    reader.close()
    return found


def large_ones(url: str, subscription: str) -> tuple[list[Message], set[Message]]:
    """Return the messages that a new consumer of the subscription gets whole, and those with only their end."""
    values, ends = asyncio.run(large_messages(url, LARGE, subscription, THE_END))
    numbers = (int(uuid.removeprefix("chunked-")) for uuid in ends)
    return [message_of(value) for value in values], {Message("chunked", number) for number in numbers}


def wait_for_progress(history: History, messages: int, topic: str) -> None:
    wanted = history.stored_count() + messages
    wait_until(lambda: history.stored_count() >= wanted, f"{messages} more messages of {topic}")


def subscriptions_of(root: Path | str) -> set[str]:
    return {record.name for record in Root.open(root).store.view().all(SubscriptionRecord)}


async def until(ended: threading.Event, work: Sequence[Coroutine[object, object, None]]) -> None:
    async with asyncio.TaskGroup() as group:  # which tells of errors
        tasks = [group.create_task(each) for each in work]
        await asyncio.to_thread(ended.wait)
        for task in tasks:
            task.cancel()


def settle(is_so: Callable[[], bool], progress: Callable[[], object]) -> None:
    """Wait, too, while there is progress; what is missing in the end is for the judge to name."""
    seen, until_s = progress(), time.monotonic() + END_S
    while not is_so() and time.monotonic() < until_s:
        time.sleep(0.5)
        if progress() != seen:
            seen, until_s = progress(), time.monotonic() + END_S


def judge(run: Run) -> str:
    """Call `disturb` in a process of its own: the first client of a process decides where all clients log to."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(disturb, run).result()
