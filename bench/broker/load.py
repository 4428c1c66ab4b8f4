"""The Go program that loads a broker, and the payloads that it sends."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.broker.targets import Target
from bench.payload import VALUE_SIZE_BYTES, value_batches
from tests.kit.go import find_go

_PAYLOADS = 20_000
_SOURCE = Path(__file__).parent / "load"
_CONNECTING_S = 120.0


@dataclass(frozen=True, slots=True)
class Seconds:
    """Results of a load over some seconds.

    Attributes:
        seconds: The number of seconds.
        acked: Number of messages with a receipt.
        received: Number of messages that consumers received.
    """

    seconds: float
    acked: int
    received: int


@dataclass(frozen=True, slots=True)
class Outcome(Seconds):
    """Results of a load, from the end of its warm-up.

    Attributes:
        send_p50_ms: Median time from the producer's call to the receipt, batching included.
        send_p99_ms: The same, 99th percentile.
        end_to_end_p50_ms: Median time from the producer's call to the delivery at the consumer.
        end_to_end_p99_ms: The same, 99th percentile.
        end_to_end_max_ms: The same, maximum.
        connect_s: Time until all producers and consumers were connected, before the warm-up.
        all_acked: Number of messages with a receipt since the start, including the warm-up and the end.
    """

    send_p50_ms: float
    send_p99_ms: float
    end_to_end_p50_ms: float
    end_to_end_p99_ms: float
    end_to_end_max_ms: float
    connect_s: float
    all_acked: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The messages to send.

    Attributes:
        length_s: Duration of the measurement in seconds.
        warm_up_s: Duration of the warm-up before the measurement, in seconds.
        topics: Number of topics.
        partitions: Partitions of each topic; 0 for a topic without partitions.
        producers: Producers of each topic.
        consumers: Consumers of each topic, which share its partitions.
        rate: Messages a second of each producer; 0 for as many as possible.
        pending: Messages of a producer that may wait for their receipts.
        batches: True for batches of up to 128 KiB, each sent after a millisecond at the latest.
        size_bytes: Size of a message in bytes.
        compression: The compression of messages by the producers, "none" or "zstd".
    """

    length_s: float
    warm_up_s: float = 10.0
    topics: int = 1
    partitions: int = 0
    producers: int = 1
    consumers: int = 0
    rate: float = 0.0
    pending: int = 1000
    batches: bool = True
    size_bytes: int = VALUE_SIZE_BYTES
    compression: str = "none"


class RunningLoad:
    """A running load."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def lines(self) -> Iterator[Seconds | Outcome]:
        """Yield results every ten seconds after the warm-up, and at the end the outcome.

        Raises:
            RuntimeError: the program failed.
        """
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            said = json.loads(line)
            is_summary = said.pop("is_summary")
            fields = Outcome.__dataclass_fields__ if is_summary else Seconds.__dataclass_fields__
            yield (Outcome if is_summary else Seconds)(**{name: said[name] for name in fields})
        if self._process.wait():
            assert self._process.stderr is not None, "it is a pipe"
            raise RuntimeError(
                f"The load program ended with code {self._process.returncode}: {self._process.stderr.read()}"
            )


class Load:
    """Program that puts load on brokers.

    Args:
        work: A folder for the program and the payloads.
    """

    def __init__(self, work: Path) -> None:
        self._program = work / "load"
        self._payloads = work / "payloads"
        _build(self._program)
        values = next(value_batches(_PAYLOADS)).column("value")
        self._payloads.write_bytes(values.buffers()[2])

    @contextmanager
    def running(self, target: Target, topic: str, shape: Shape) -> Iterator[RunningLoad]:
        """Put load on a broker; yields the running load, which ends at the latest with the context."""
        command = [
            str(self._program),
            *("-url", target.url, "-admin", target.admin_url or ""),
            *("-trust", target.trust_certs or "", "-token", target.token or ""),
            *("-topic", topic, "-topics", str(shape.topics), "-partitions", str(shape.partitions)),
            *("-producers", str(shape.producers), "-consumers", str(shape.consumers), "-rate", str(shape.rate)),
            *("-pending", str(shape.pending), f"-batches={str(shape.batches).lower()}"),
            *("-payloads", str(self._payloads), "-size", str(shape.size_bytes), "-compression", shape.compression),
            *("-warm-up", f"{shape.warm_up_s}s", "-length", f"{shape.length_s}s"),
        ]
        process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            yield RunningLoad(process)
        finally:
            process.kill()
            process.wait()

    def run(self, target: Target, topic: str, shape: Shape) -> Outcome:
        """Put load on a broker, wait for its end, and return the outcome."""
        with self.running(target, topic, shape) as running:
            *_, outcome = running.lines()
        assert isinstance(outcome, Outcome), "the last line is the outcome"
        return outcome


def _build(program: Path) -> None:
    go = find_go()
    if go is None:
        raise SystemExit("Go is not installed, and the load is written in it: install Go 1.24 or newer.")
    subprocess.run([go, "build", "-buildvcs=false", "-o", str(program), "."], cwd=_SOURCE, check=True)
