"""The flags of `pulsar-client` and `pulsar-perf` do what their users expect."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark.cli.consume import patience_s
from tests.kit.running_broker import RunningBroker

from .test_app import Run, ok, run  # noqa: F401  (a fixture)

PROGRAM = [sys.executable, "-m", "pulsar_on_spark.cli"]
HEARS_CTRL_C = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
runpy.run_module("pulsar_on_spark.cli", run_name="__main__")
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path_factory.mktemp("flags") / "root") as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[pulsar.Client]:
    monkeypatch.setenv("PULSARPY_URL", broker.url)
    with closing(pulsar.Client(broker.url)) as made:
        yield made


def received(client: pulsar.Client, topic: str, number: int) -> list[pulsar.Message]:
    consumer = client.subscribe(topic, "check", initial_position=pulsar.InitialPosition.Earliest)
    found = [consumer.receive(30_000) for _ in range(number)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    consumer.close()
    return found


def test_produce_takes_the_flags_of_pulsar_client(run: Run, client: pulsar.Client) -> None:  # noqa: F811
    said = ok(run("produce", "-n", 3, "-m", "a", "-m", "b", "-k", "key", "-p", "x=1,y=2", "--property", "z=3,4", "all"))
    assert said == "Published 6 messages to all.\n"
    found = received(client, "all", 6)
    assert [each.data() for each in found] == [b"a", b"b"] * 3
    assert {each.partition_key() for each in found} == {"key"}
    assert all(each.properties() == {"x": "1", "y": "2", "z": "3,4"} for each in found)


def test_messages_are_split_only_at_a_given_separator(run: Run, client: pulsar.Client) -> None:  # noqa: F811
    ok(run("produce", "split", "-m", '{"a": 1, "b": 2}'))
    ok(run("produce", "split", "-m", "x;y", "-m", "z", "-s", ";"))
    assert [each.data() for each in received(client, "split", 4)] == [b'{"a": 1, "b": 2}', b"x", b"y", b"z"]


def test_files_are_messages(run: Run, client: pulsar.Client, tmp_path: Path) -> None:  # noqa: F811
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"\x00\n\xff")
    large.write_bytes(os.urandom(6 << 20))
    ok(run("produce", "files", "-f", small, "-m", "text", "-db"))
    ok(run("produce", "files", "-f", large, "-c"))
    found = received(client, "files", 3)
    assert [each.data() for each in found] == [b"text", small.read_bytes(), large.read_bytes()]
    assert found[0].message_id().batch_index() == -1


def test_produce_keeps_to_its_rate(run: Run, client: pulsar.Client) -> None:  # noqa: F811
    begun_s = time.monotonic()
    ok(run("produce", "paced", "-m", "a", "-n", 6, "-r", 10))
    assert time.monotonic() - begun_s >= 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "2"], "--num-produce"),
        (["-m", "a", "-s", ""], "--separator is empty"),
        (["-f", "/no/such/file"], "/no/such/file"),
        (["-m", "a", "-p", "x=1,y"], "'y' is not of the form name=value"),
    ],
)
def test_produce_refuses_wrong_options(run: Run, client: pulsar.Client, arguments: list[str], message: str) -> None:  # noqa: F811
    done = run("produce", "refused", *arguments)
    assert (done.code, done.out, message in done.err, done.err.count("\n")) == (1, "", True, 1)


def test_consume_takes_the_flags_of_pulsar_client(run: Run, client: pulsar.Client) -> None:  # noqa: F811
    for name in ("many-1", "many-2"):
        ok(run("produce", name, "-m", name))
    lines = ok(run("consume", "-s", "s", "-n", 2, "-t", "Failover", "-p", "Earliest", "--regex", "many-.", "--json"))
    found = {each["topic"]: each["value"] for each in map(json.loads, lines.splitlines())}
    assert found == {f"persistent://public/default/{name}": name for name in ("many-1", "many-2")}
    assert "many-1  " in ok(run("consume", "-s", "t", "-n", 2, "-p", "earliest", "--regex", "many-."))
    ok(run("produce", "held", "-m", "a", "-m", "b", "-m", "c"))
    held = client.subscribe("held", "s", pulsar.ConsumerType.Exclusive)
    done = run("consume", "held", "-s", "s", "-t", "Exclusive")
    assert (done.code, "ConsumerBusy" in done.err) == (1, True)
    held.close()
    begun_s = time.monotonic()
    ok(run("consume", "held", "-s", "paced", "-n", 3, "-p", "Earliest", "-r", 4))
    assert time.monotonic() - begun_s >= 0.5
    assert "not a pattern" in run("consume", "(", "-s", "s", "--regex").err
    assert "--follow" in run("consume", "held", "-s", "s", "--follow", "--timeout", 1).err


def test_without_a_number_consume_waits_as_pulsar_client_does() -> None:
    assert patience_s(1, None) == 10
    assert patience_s(0, None) == patience_s(0, 0) == patience_s(1, 0) == math.inf
    assert patience_s(0, 3) == patience_s(1, 3) == 3


@pytest.mark.parametrize("flag", ["--follow", "-n0"])
def test_consume_continues_until_ctrl_c(client: pulsar.Client, flag: str) -> None:
    topic = f"followed{flag}"
    program = [sys.executable, "-c", HEARS_CTRL_C]
    command = [*program, "consume", topic, "-s", "s", "-p", "Earliest", "--json", flag]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            producer = client.create_producer(topic)
            for value in ("one", "two"):
                producer.send(value.encode())
                assert json.loads(process.stdout.readline())["value"] == value
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()


def test_perf_takes_the_flags_of_pulsar_perf(run: Run, client: pulsar.Client) -> None:  # noqa: F811
    flags = ["-time", 30, "-m", 40, "-s", 10, "-n", 2, "-t", 2, "-o", 5, "-db", "-b", 2]
    produced = json.loads(ok(run("perf", "produce", "load", *flags, "--json")))
    assert (produced["messages"], produced["bytes"], produced["failed"]) == (40, 400, 0)
    for number in (0, 1):
        flags = ["-m", 20, "-ss", "s", "-st", "Failover", "-sp", "Earliest", "-q", 10, "-r", 1000, "--json"]
        assert json.loads(ok(run("perf", "consume", f"load-{number}", *flags)))["messages"] == 20


def test_perf_prints_during_a_stall_and_counts_failures(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "root") as broker:
        command = [*PROGRAM, "perf", "produce", "t", "-o", "10", "-i", "0.2", "-time", "4", "--send-timeout", "2"]
        with subprocess.Popen(
            [*command, "--url", broker.url], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stderr is not None
            assert process.stdout is not None
            assert re.match(r" +0\.\d s +[\d,]+ messages/s +0 failed$", process.stderr.readline())
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                in_stall = [process.stderr.readline() for _ in range(10)]
                summary = process.stdout.readline()
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            assert " 0 messages/s" in in_stall[-1]
            # `communicate` would lose what came together with a line before.
            rest, said = process.stdout.read(), process.stderr.read()
            process.wait(60)
            failed = re.search(r"([\d,]+) failed$", summary)
            assert failed is not None
            assert int(failed[1].replace(",", "")) > 0
            assert "Latency in ms" in rest
            assert said.splitlines()[-1].startswith(f"pulsarpy: {failed[1]} messages failed (")
            assert process.returncode == 1
