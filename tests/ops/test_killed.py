"""Every command of `pulsarpy` is killed at random points, run again to its end, and leaves a consistent root."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.broker.clients.test_durable import stored
from tests.kit.running_broker import RunningBroker
from tests.ops.commands import SCENARIOS, Command, Scenario
from tests.ops.forked_commands import KILLED, NEVER, ForkedCommands, Kill, Run
from tests.ops.live_root import BROKERED, WRITTEN, LiveRoot

pytestmark = pytest.mark.long

SOAK_KILLS = 100
"""Of each scenario."""
KILLS_OF_A_ROOT = 250


class Killer:
    """Kills commands on a root at random, and knows how long they took before.

    Attributes:
        live: The root.
        kills: How many there were, by scenario.
    """

    def __init__(self, scratch: Path, commands: ForkedCommands) -> None:
        print(f"seed {(seed := random.randrange(1 << 32))}")
        rng = random.Random(seed)
        self.live = LiveRoot(scratch, rng)
        self.kills: Counter[Scenario] = Counter()
        self._commands = commands
        self._rng = rng
        self._before: dict[str, Run] = {}

    def play(self, scenario: Scenario, most: int) -> None:
        """Kill each of its commands up to `most` times, as far as it does not come through; then let it end."""
        for command in scenario(self.live):
            self.kills[scenario] += self._run(self.live, command, self._rng.randint(1, most))

    def _run(self, live: LiveRoot, command: Command, times: int) -> int:
        """Returns how often it was killed."""
        name = " ".join(each for each in command.arguments[:2] if "/" not in each)
        arguments = [*command.arguments, *(["--root", str(live.path)] if command.needs_root else [])]
        was_done = False
        for number in range(times + 1):
            ended = self._commands.run(arguments, self._moment(name) if number < times else NEVER)
            is_refused = was_done and bool(command.refusal) and command.refusal in ended.said
            assert ended.code in (0, KILLED) or is_refused, (arguments, ended)
            if ended.code != KILLED:
                self._before[name] = ended
                break
            was_done = command.is_done(live.check())
        assert ended.code != KILLED
        assert command.is_done(live.open()), arguments
        return number

    def _moment(self, name: str) -> Kill:
        before = self._before.get(name)
        if self._rng.random() < 0.7:
            return Kill(at_file=self._rng.randint(1, 30 if before is None else before.files))
        return Kill(after_s=self._rng.uniform(0, 0.5 if before is None else before.lasted_s))


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    scratch = tmp_path_factory.mktemp("killed")
    with ForkedCommands(scratch) as commands:
        yield Killer(scratch, commands)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_commands_that_are_killed(killer: Killer, scenario: Scenario) -> None:
    killer.play(scenario, most=1)


def test_after_the_kills_the_root_is_complete_and_serves(killer: Killer) -> None:
    print(
        f"{killer.kills.total()} kills:",
        *(f"{kills} of {scenario.__name__}" for scenario, kills in killer.kills.items()),
    )
    live = killer.live
    live.check_after_all()
    with RunningBroker(live.path) as broker:
        _use(broker)
    assert stored(live.path, BROKERED) == [*live.expected[BROKERED], b"new"]
    assert stored(live.path, WRITTEN) == live.expected[WRITTEN]


def _use(broker: RunningBroker) -> None:
    client = new_client(broker.url)
    consumer = client.subscribe(BROKERED, "all", initial_position=pulsar.InitialPosition.Earliest)
    client.create_producer(BROKERED).send(b"new")
    while consumer.receive(WAIT_MS).data() != b"new":
        pass
    client.close()


@pytest.mark.soak
def test_commands_that_are_killed_a_hundred_times(tmp_path: Path) -> None:
    """In random order, so that each meets what the others left; now and then on a new root, for they grow."""
    kills: Counter[Scenario] = Counter()
    with ForkedCommands(tmp_path) as commands:
        while left := _left(kills):
            scratch = tmp_path / str(kills.total())
            scratch.mkdir()
            killer = Killer(scratch, commands)
            while killer.kills.total() < KILLS_OF_A_ROOT and left:
                for scenario in random.sample(left, len(left)):
                    killer.play(scenario, most=5)
                left = _left(kills + killer.kills)
            test_after_the_kills_the_root_is_complete_and_serves(killer)
            kills += killer.kills
            shutil.rmtree(scratch)


def _left(kills: Counter[Scenario]) -> list[Scenario]:
    return [scenario for scenario in SCENARIOS if kills[scenario] < SOAK_KILLS]
