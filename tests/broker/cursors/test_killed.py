"""Brokers in their own processes are killed: confirmed acknowledgements survive, and no other message is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time

import pytest

from pulsar_on_spark.model.ids import EARLIEST, EntryId
from pulsar_on_spark.root import Root
from tests.kit.cursor_broker import CursorBroker

pytestmark = pytest.mark.long

LEASE_S = 0.5
BATCH = 3

COMMON = """
import asyncio, random, sys
from pathlib import Path
from pulsar_on_spark.model.ids import EARLIEST
from tests.kit.cursor_broker import CursorBroker
from pulsar_on_spark.root import Root

async def start():
    return await CursorBroker.start(Root.open(Path(sys.argv[1])), lease_duration_s=0.5, snapshot_every_s=0.3)
"""

MANY_HOLES = (
    COMMON
    + """
async def run():
    broker = await start()
    sent = []
    for _ in range(20):
        sent += await broker.send("t", [b"x"] * 5_000)
    sent += await broker.send("t", [b"x"] * 3_000, batch=3)
    cursor = await broker.open("t")
    for message in sent[1:100_000:2]:
        cursor.cursor.acknowledge(message.ledger, message.entry)
    for message in sent[100_000:]:
        cursor.cursor.acknowledge(message.ledger, message.entry, 0b101, 3)
    cursor.record_changes()
    await cursor.wait_durable()
    print("confirmed", flush=True)
    await asyncio.sleep(60)

asyncio.run(run())
"""
)

AT_RANDOM = (
    COMMON
    + """
async def run():
    chance = random.Random(int(sys.argv[2]))
    broker = await start()
    cursor = await broker.open("t")
    print("open", flush=True)
    while True:
        ranges = cursor.cursor.deliverable(EARLIEST, 1_000_000).ranges
        entries = [(r.ledger, entry) for r in ranges for entry in range(r.first, r.end)]
        chosen = chance.sample(entries, min(5, len(entries)))
        for ledger, entry in chosen:
            unacked = chance.choice([0, 0, 0b001, 0b110])
            print("trying", ledger, entry, unacked)
            cursor.cursor.acknowledge(ledger, entry, unacked, 3)
        cursor.record_changes()
        sys.stdout.flush()
        await cursor.wait_durable()
        print("confirmed", flush=True)
        if chance.random() < 0.05 or not entries:
            await broker.keeper.release_subscriptions([cursor])
            cursor = await broker.open("t")

asyncio.run(run())
"""
)

PAUSED = (
    COMMON
    + """
async def run():
    broker = await start()
    cursor = await broker.open("t")
    chain = broker.chain("t")
    try:
        while True:
            at = cursor.cursor.mark_delete
            cursor.cursor.acknowledge(at.ledger, at.entry + 1)
            cursor.cursor.acknowledge(at.ledger, at.entry)
            cursor.record_changes()
            await cursor.wait_durable()
            print("confirmed", flush=True)
    except Exception as error:
        print("ended", type(error).__name__)
    cursor.lost = None
    try:
        await broker.keeper.save_cursors()
        await broker.keeper.release_subscriptions([cursor])
        await broker.keeper.acquire_subscription(cursor.part, "other", "Shared", "earliest", chain)
    except Exception as error:
        print("refused", type(error).__name__, flush=True)

asyncio.run(run())
"""
)


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def left(root: Root) -> dict[tuple[int, int], int]:
    """Return the entries that the next owner would deliver, with the bits of unacknowledged messages; 0 for all."""

    async def run() -> dict[tuple[int, int], int]:
        broker = await CursorBroker.start(root, lease_duration_s=LEASE_S)
        cursor = (await broker.open("t")).cursor
        ranges = cursor.deliverable(EARLIEST, 10_000_000).ranges
        entries = [(range_.ledger, EntryId(entry)) for range_ in ranges for entry in range(range_.first, range_.end)]
        unacked = {(int(ledger), int(entry)): cursor.ack_set(ledger, entry) for ledger, entry in entries}
        await broker.stop()
        return unacked

    return asyncio.run(run())


def send(root: Root, entries: int) -> set[tuple[int, int]]:
    async def run() -> set[tuple[int, int]]:
        broker = await CursorBroker.start(root)
        sent = await broker.send("t", [b"x"] * (entries * BATCH), batch=BATCH)
        await broker.stop()
        return {(int(message.ledger), int(message.entry)) for message in sent}

    return asyncio.run(run())


def test_ack_holes_of_any_number_survive_a_kill(root: Root) -> None:
    """Pulsar keeps 10,000 ranges by default, and forgets the rest at a restart (apache/pulsar#25540)."""
    process = start(MANY_HOLES, root.path)
    assert process.stdout is not None
    assert process.stdout.readline() == "confirmed\n"
    kill(process)
    unacked = list(left(root).values())
    assert len(unacked) == 50_000 + 1_000
    assert unacked[:50_000] == [0] * 50_000
    assert unacked[50_000:] == [0b101] * 1_000


def test_a_fenced_broker_that_wakes_up_confirms_nothing_and_moves_no_cursor(root: Root) -> None:
    """The broker was presumed dead: another broker took its subscription, and a client of the new owner sought back."""
    sent = send(root, 5_000)
    process = start(PAUSED, root.path)
    assert process.stdout is not None
    for _ in range(20):
        assert process.stdout.readline() == "confirmed\n"
    process.send_signal(signal.SIGSTOP)

    async def run() -> None:
        broker = await CursorBroker.start(root, lease_duration_s=LEASE_S)
        cursor = await broker.open("t")
        assert cursor.cursor.backlog_entries <= len(sent) - 40
        await broker.keeper.reset_cursor(cursor, EARLIEST)
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        lines = await asyncio.to_thread(process.stdout.readlines)
        process.wait()
        # Lines from before the pause may still be in the pipe; these two are the last.
        assert lines[-2:] == ["ended JournalFencedError\n", "refused JournalFencedError\n"]
        await broker.keeper._find_lost()
        assert cursor.lost is None
        await broker.stop()

    asyncio.run(run())
    assert left(root).keys() == sent, "the seek counts"


def kill_again_and_again(root: Root, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    sent = send(root, 2_000)
    tried: dict[tuple[int, int], set[int]] = {}
    confirmed: dict[tuple[int, int], set[int]] = {}
    for number in range(rounds):
        process = start(AT_RANDOM, root.path, chance.randrange(1 << 30))
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        until_s = time.monotonic() + chance.uniform(0.05, 0.8)
        while time.monotonic() < until_s:
            lines.append(process.stdout.readline())
        kill(process)
        lines += process.stdout.readlines()
        assert lines[0] == "open\n", number
        under_way: list[tuple[tuple[int, int], set[int]]] = []
        for line in lines[1:]:
            word, *numbers = line.split()
            if word == "trying" and line.endswith("\n"):
                ledger, entry, unacked = map(int, numbers)
                acked = {index for index in range(BATCH) if not unacked >> index & 1}
                tried.setdefault((ledger, entry), set()).update(acked)
                under_way.append(((ledger, entry), acked))
            elif line == "confirmed\n":
                for position, acked in under_way:
                    confirmed.setdefault(position, set()).update(acked)
                under_way = []
    assert confirmed, "nothing was confirmed: longer lives are needed"
    remaining = left(root)
    for position, indexes in confirmed.items():
        unacked = remaining.get(position)
        delivered = set() if unacked is None else {i for i in range(BATCH) if not unacked or unacked >> i & 1}
        assert not delivered & indexes, f"{position} was confirmed and is delivered again"
    for position in sent - remaining.keys():
        assert tried.get(position, set()) == set(range(BATCH)), f"{position} is lost"
    for position, unacked in remaining.items():
        missing = set() if not unacked else {i for i in range(BATCH) if not unacked >> i & 1}
        assert missing <= tried.get(position, set()), f"messages of {position} are lost"


def test_confirmed_acknowledgements_survive_kills_at_any_time(root: Root) -> None:
    kill_again_and_again(root, rounds=4, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_confirmed_acknowledgements_survive_many_kills(root: Root, seed: int) -> None:
    kill_again_and_again(root, rounds=40, seed=seed)
