"""Clients of all topics of disturbed brokers, from their start until they have seen all messages."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import pulsar

from tests.broker.clients.conftest import new_client
from tests.broker.clients.raw_chunks import large_messages
from tests.broker.cluster.disturbed.clients import (
    CONFIRMED,
    CONSUMERS,
    PRODUCERS,
    confirm,
    consume,
    grant,
    note_dropped,
    note_line,
    produce,
)
from tests.broker.cluster.disturbed.topics import LARGE, MIXED, ORDERS, THE_END, WHOLE, message_of
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.client_programs import ClientProgram, Command
from tests.kit.history import Discarded, Expired, History, Message, Order, Restarted, Waiting
from tests.kit.restarting_broker import RestartingBroker
from tests.kit.waiting import wait_until

END_S = 120
"""For anything, but the end of the last backlog: that may take as long as there is progress."""


class Load:
    """Clients of all topics, and what they note; on leaving, all are stopped at once.

    Attributes:
        histories: What the clients of each topic have noted.
    """

    def __init__(
        self, broker: RestartingBroker | BrokerCluster, subscriptions: Mapping[str, Mapping[str, Order]], folder: Path
    ) -> None:
        """Start no producers and consumers yet.

        Args:
            broker: The brokers.
            subscriptions: The promises of the subscriptions of each topic.
            folder: A folder for the clients' logs.
        """
        self.histories = {topic: History() for topic in subscriptions}
        self._broker, self._subscriptions, self._folder = broker, subscriptions, folder
        self._log = folder / "client.log"
        # Not a Python logger: the client would call it at any time, also when the interpreter ends.
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(self._log))
        self._reading_large = pulsar.Client(broker.url, operation_timeout_seconds=END_S, logger=logger)
        self._consuming, self._producing = (new_client(broker.url, timeout_s=END_S) for _ in range(2))
        self._programs: list[ClientProgram] = []
        self._threads: list[threading.Thread] = []
        self._enough, self._all_read = threading.Event(), threading.Event()
        self._dropped: set[Discarded | Expired] = set()
        self._at_end = ExitStack()
        for client in (self._reading_large, self._consuming, self._producing):
            self._at_end.callback(client.shutdown)  # close would wait for what never comes
        self._at_end.callback(self._all_read.set)
        self._at_end.callback(self._enough.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._at_end.close()

    def start(self, commands: Mapping[str, Command], is_confirming: Callable[[], bool]) -> None:
        """Start consumers, and producers once all subscriptions are there.

        Args:
            commands: The commands of programs with clients of other languages, by their language.
            is_confirming: Tells if the subscriptions of `CONFIRMED` are there, which begin in the background.
        """
        for topic, name, type_ in CONSUMERS:
            client = self._reading_large if topic == LARGE else self._consuming
            consume(client, topic, name, type_, self.histories[topic])
        for command in commands.values():
            log, note = self._folder / "programs.log", partial(note_line, self.histories[MIXED])
            program = ClientProgram(command, self._broker.url, MIXED, log, note)
            self._programs.append(self._at_end.enter_context(program))
        work = [confirm(self._broker.url_of, name, self.histories[ORDERS]) for name in CONFIRMED]
        self._confirming = threading.Thread(target=asyncio.run, args=(_until(self._all_read, work),))
        self._confirming.start()
        wait_until(is_confirming, "the confirming consumers' subscriptions")
        for name, topic in PRODUCERS.items():
            self._start(partial(produce, self._producing, name, self.histories[topic], self._enough))
        if self._programs:
            subscriptions = self._subscriptions[MIXED]
            self._start(partial(grant, self._programs, self.histories[MIXED], subscriptions, self._enough))

    def disturb(self, disturbance: Callable[[], object]) -> float:
        """Disturb the brokers after some messages; returns the seconds that both took."""
        began_s = time.monotonic()
        self._wait_for_progress(ORDERS, random.randrange(20, 300))
        disturbance()
        for history in self.histories.values():
            history.note(Restarted())
        return time.monotonic() - began_s

    def end(self) -> None:
        """End the producers after a message more of each topic, and the consumers when they have read all."""
        for topic in self.histories:
            self._wait_for_progress(topic, 1)
        self._enough.set()
        for thread in self._threads:
            thread.join(END_S)
        _settle(self._is_settled, lambda: [self.histories[t].behind(names) for t, names in self._subscriptions.items()])
        self._all_read.set()
        self._confirming.join(END_S)
        for client in (self._reading_large, self._consuming):
            client.close()
        for program in self._programs:
            program.close()
        self._note_dropped()

    def read_all(self) -> dict[str, list[list[Message]]]:
        """Read all that each partition of each topic holds, from its beginning, once the clients have ended."""
        client = self._producing
        kept = {
            topic: [_everything(client, partition) for partition in client.get_topic_partitions(topic)]
            for topic in self._subscriptions
            if topic != LARGE
        }
        client.create_producer(LARGE).send(THE_END)
        client.close()
        whole, ends = self._large_ones(WHOLE)
        expired = {event.message for event in self._dropped if isinstance(event, Expired)}
        for message in {*whole, *(ends & expired)}:
            self.histories[LARGE].note(Waiting(WHOLE, message))
        everything, _ = self._large_ones("all of them")
        return kept | {LARGE: [everything]}

    def _start(self, work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _wait_for_progress(self, topic: str, messages: int) -> None:
        history = self.histories[topic]
        wanted = history.stored_count() + messages
        wait_until(lambda: history.stored_count() >= wanted, f"{messages} more messages of {topic}")

    def _is_settled(self) -> bool:
        self._note_dropped()
        return all(
            self.histories[topic].is_settled(name) for topic, names in self._subscriptions.items() for name in names
        )

    def _note_dropped(self) -> None:
        note_dropped(self._log, self.histories[LARGE], self._dropped)

    def _large_ones(self, subscription: str) -> tuple[list[Message], set[Message]]:
        """Return the messages that a new consumer of the subscription gets whole, and those with only their end."""
        url = self._broker.url_of(LARGE)
        values, ends = asyncio.run(large_messages(url, LARGE, subscription, THE_END))
        numbers = (int(uuid.removeprefix("chunked-")) for uuid in ends)
        return [message_of(value) for value in values], {Message("chunked", number) for number in numbers}


def _everything(client: pulsar.Client, partition: str) -> list[Message]:
    reader = client.create_reader(partition, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(message_of(reader.read_next(END_S * 1000).data()))
    reader.close()
    return found


async def _until(ended: threading.Event, work: list[Coroutine[object, object, None]]) -> None:
    async with asyncio.TaskGroup() as group:  # which tells of errors
        tasks = [group.create_task(each) for each in work]
        await asyncio.to_thread(ended.wait)
        for task in tasks:
            task.cancel()


def _settle(is_so: Callable[[], bool], progress: Callable[[], object]) -> None:
    """Wait, too, while there is progress; what is missing in the end is for the judge to name."""
    seen, until_s = progress(), time.monotonic() + END_S
    while not is_so() and time.monotonic() < until_s:
        time.sleep(0.5)
        if progress() != seen:
            seen, until_s = progress(), time.monotonic() + END_S
