"""Every command of `pulsarpy` is killed at random points, run again to its end, and leaves a consistent root."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark.testing.running_broker import RunningBroker
from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.broker.clients.test_durable import stored
from tests.ops.commands import SCENARIOS, Command
from tests.ops.forked_commands import KILLED, NEVER, ForkedCommands, Kill, Run
from tests.ops.live_root import BROKERED, WRITTEN, LiveRoot


class Killer:
    """Kills commands at random, and knows how long they took before."""

    def __init__(self, commands: ForkedCommands, rng: random.Random) -> None:
        self.kills: Counter[str] = Counter()
        self._commands = commands
        self._rng = rng
        self._before: dict[str, Run] = {}

    def run(self, live: LiveRoot, command: Command, times: int) -> None:
        """Kill the command so often, as far as it does not come through; then it does what it is to do."""
        name = " ".join(command.arguments[:2])
        arguments = [*command.arguments, *(["--root", str(live.path)] if command.needs_root else [])]
        was_done = False
        for number in range(times + 1):
            ended = self._commands.run(arguments, self._moment(name) if number < times else NEVER)
            is_refused = was_done and bool(command.refusal) and command.refusal in ended.said
            assert ended.code in (0, KILLED) or is_refused, (arguments, ended)
            if ended.code != KILLED:
                self._before[name] = ended
                break
            self.kills[name] += 1
            live.check()
            was_done = command.is_done(live.open())
        assert ended.code != KILLED
        assert command.is_done(live.open()), arguments

    def _moment(self, name: str) -> Kill:
        before = self._before.get(name)
        if self._rng.random() < 0.7:
            return Kill(at_file=self._rng.randint(1, 30 if before is None else before.files))
        return Kill(after_s=self._rng.uniform(0, 0.5 if before is None else before.lasted_s))


def killed(scratch: Path, rounds: int, most: int) -> None:
    """Run all scenarios so often, in random order, and kill each command up to `most` times before it may end."""
    rng = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    live = LiveRoot(scratch, rng)
    live.check()
    with ForkedCommands(scratch) as commands:
        killer = Killer(commands, rng)
        for _ in range(rounds):
            for scenario in rng.sample(SCENARIOS, len(SCENARIOS)):
                for command in scenario(live):
                    killer.run(live, command, rng.randint(1, most))
    print(f"{killer.kills.total()} kills: {dict(killer.kills)}")
    live.check_after_all()
    with RunningBroker(live.path) as broker:
        _use(broker)
    assert stored(live.path, BROKERED) == [*live.expected[BROKERED], b"new"]
    assert stored(live.path, WRITTEN) == live.expected[WRITTEN]
    assert killer.kills.total() >= rounds * len(SCENARIOS)


def _use(broker: RunningBroker) -> None:
    client = new_client(broker.url)
    consumer = client.subscribe(BROKERED, "all", initial_position=pulsar.InitialPosition.Earliest)
    client.create_producer(BROKERED).send(b"new")
    while consumer.receive(WAIT_MS).data() != b"new":
        pass
    client.close()


def test_commands_that_are_killed(tmp_path: Path) -> None:
    killed(tmp_path, rounds=1, most=1)


@pytest.mark.soak
def test_commands_that_are_killed_a_hundred_times(tmp_path: Path) -> None:
    killed(tmp_path, rounds=100, most=3)
