"""A sealer beside an active journal: its lag, CPU and memory. `python -m bench.sealing_beside`.

    python -m bench.sealing_beside [seconds] [messages a second ...]; 0 for the maximum

The journal runs in this process and the sealer in another, as in a broker. Payloads are those of `bench.sealing`, in
batches of 100 with LZ4. Producers wait while the lag is above its limit, as in a broker.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

from bench.sealing import CASES, MESSAGE_BYTES, entries
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.sealing.process import SealingPolicy, SealingProcess
from tests.kit.running_incarnation import RunningIncarnation

POLICY = SealingPolicy(lag_limit_bytes=512 << 20)
BURST_ENTRIES = 50
CASE = CASES[1]


def measure(directory: Path, seconds: float, rate: int) -> str:
    """Return one row: bytes written, the largest lag, the wait of producers, and the sealer's CPU and memory."""
    root = Root.create(directory / "root")
    root.create_topic("topic")
    pool = cycle(list(entries(CASE, 20_000)))
    counts = [CASE.batch_messages] * BURST_ENTRIES
    messages = largest_lag = 0
    held_s = 0.0
    try:
        with RunningIncarnation(root) as running:
            sealing = SealingProcess(root.path, running.incarnation.id, POLICY)
            sealing.start()
            try:
                started_s = time.monotonic()
                while (passed_s := time.monotonic() - started_s) < seconds:
                    if sealing.is_over_lag_limit():
                        time.sleep(0.01)
                        held_s += 0.01
                        continue
                    if rate and messages > rate * passed_s:
                        time.sleep(0.005)
                        continue
                    running.send_entries("topic", list(islice(pool, BURST_ENTRIES)), counts)
                    messages += CASE.batch_messages * BURST_ENTRIES
                    largest_lag = max(largest_lag, sealing.lag_bytes)
                cpu_s, peak_mib = _usage(sealing.pid or 0)
                lag = sealing.lag_bytes
            finally:
                sealing.stop()
            running.stop()
    finally:
        shutil.rmtree(directory / "root")
    return (
        f"{rate or 'as fast as it goes':>18} {messages / seconds:>9,.0f} messages/s of {MESSAGE_BYTES} bytes, "
        f"lag at most {largest_lag / 1e6:,.0f} MB, at the end {lag / 1e6:,.0f} MB, "
        f"held back {held_s:.1f} of {seconds:.0f} s; the sealer {cpu_s / seconds:.2f} CPU s a second, "
        f"{peak_mib:,.0f} MiB at most"
    )


def _usage(pid: int) -> tuple[float, float]:
    """Return the CPU seconds and the largest resident size in MiB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    peak = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / 100, int(peak.split()[1]) / 1024


def main() -> None:
    """Measure at the given rates and print a row for each."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    for rate in [int(given) for given in sys.argv[2:]] or [20_000, 50_000, 0]:
        with tempfile.TemporaryDirectory() as directory:
            print(measure(Path(directory), seconds, rate), flush=True)


if __name__ == "__main__":
    main()
