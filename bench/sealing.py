"""The speed of sealing: messages of 1 KiB a second and a core, from journal files to committed segments.

    python -m bench.sealing [messages] [number of the case]

Frames of about 1 MiB are read and checked, entries are taken apart, rows are encoded with zstd level 1, checked, and
written to three copies that are synced. Payloads compress like JSON of an application (about 3 times). The result is
messages a CPU second of the whole process, with threads and commits; wall time depends on the disk.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pulsar_on_spark.ledger.segments.segment_reader import read_batches
from pulsar_on_spark.metadata.records import FileRecord, TopicRecord
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.ids import EARLIEST, IncarnationId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.compression import Codec
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer, SealReport
from tests.kit.journal_logs import LogOnDisk
from tests.kit.pulsar_entries import ClientMessage, batch_entry, single_entry

MESSAGE_BYTES = 1024
FRAME_MESSAGES = 1000
POOL_MESSAGES = 20_000
"""Number of distinct messages, so high that zstd's window has few of them twice."""
READ_TOPICS = 20
"""Number of topics whose sealed messages are read, one after the other."""
GOAL = 200_000
"""Target: messages a second on one core."""


@dataclass(frozen=True, slots=True)
class Case:
    """Entries of one kind, spread over several topics.

    Attributes:
        name: The name in the table.
        codec: The compression of batches; None for single messages without a batch.
        topics: Number of topics.
        batch_messages: Messages of a batch.
    """

    name: str
    codec: Codec | None
    topics: int = 1
    batch_messages: int = 100


CASES = (
    Case("batches of 100, not compressed", Codec.NONE),
    Case("batches of 100, LZ4", Codec.LZ4),
    Case("batches of 100, ZSTD", Codec.ZSTD),
    Case("single messages", None),
    Case("batches of 100, LZ4, 100 topics", Codec.LZ4, 100),
    Case("batches of 10, not compressed, 100 topics", Codec.NONE, 100, 10),
    Case("single messages, 5000 topics", None, 5000),
)


def payload(chance: random.Random) -> bytes:
    """Return 1 KiB of JSON, a third of it random."""
    record = f'{{"user":"{chance.randrange(10**6)}","session":"{chance.randbytes(150).hex()}","items":['
    while len(record) < MESSAGE_BYTES - 60:
        record += f'{{"sku":"A-{chance.randrange(1000):06d}","quantity":{chance.randrange(9)},"price":19.99}},'
    return (record.rstrip(",") + "]}").ljust(MESSAGE_BYTES)[:MESSAGE_BYTES].encode()


def entries(case: Case, messages: int) -> Iterator[bytes]:
    """Yield entries with `messages` messages in all, partly repeated: new ones would take longer than sealing."""
    chance = random.Random(1)
    made = [ClientMessage(payload(chance), key=f"key-{number}".encode()) for number in range(POOL_MESSAGES)]
    metadata = MessageMetadata(producer_name="bench", publish_time=current_ms())
    if case.codec is None:
        pool = [single_entry(message, metadata=metadata) for message in made]
        count = messages
    else:
        size = case.batch_messages
        pool = [batch_entry(made[at : at + size], case.codec, metadata) for at in range(0, len(made), size)]
        count = messages // size
    for number in range(count):
        # With many topics, each would get the same few entries repeatedly, and compress too well.
        yield pool[number % len(pool)] if case.topics == 1 else chance.choice(pool)


def filled(root: Root, case: Case, messages: int) -> LogOnDisk:
    """Return a closed journal with `messages` messages in the entries of a case."""
    log = LogOnDisk(root)
    names = [f"topic-partition-{number}" for number in range(case.topics)]
    root.create_topic("topic", case.topics)
    for start in range(0, len(names), 100):
        log.open_ledgers(names[start : start + 100])
    in_frame = FRAME_MESSAGES if case.codec is None else FRAME_MESSAGES // case.batch_messages
    frame: dict[str, list[bytes]] = {}
    for number, entry in enumerate(entries(case, messages)):
        frame.setdefault(names[number % len(names)], []).append(entry)
        if (number + 1) % in_frame == 0:
            log.append(frame)
            frame = {}
    log.close()
    return log


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealing process's results.

    Attributes:
        report: The report of the pass.
        cpu_s: CPU seconds of the process.
        peak_mib: Largest resident size of the process in MiB.
    """

    report: SealReport
    cpu_s: float
    peak_mib: float


def seal(directory: Path, incarnation: IncarnationId) -> Sealed:
    """Seal the whole journal in one pass, and return the results; called in a separate process."""
    sealer = Sealer(Root.open(directory), incarnation, is_live=False)
    started_s = _cpu_s()
    report = sealer.seal(tail=True)
    spent_s = _cpu_s() - started_s
    sealer.close()
    # Not ru_maxrss, which a process inherits from its parent.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return Sealed(report, spent_s, int(peak.split()[1]) / 1024)


def reads(root: Root) -> str:
    """Return, as a line of text, the bytes that a reader of one topic reads and decodes, as means over a few topics."""
    view = root.store.view()
    paths = root.storage_paths(view)
    reader = SliceReader(root.path, paths, ("publish_time", "key", "value"))
    names = [topic.name for topic in view.all(TopicRecord) if topic.partitions is None]
    spent_s = messages = all_rows = encoded = batches = 0.0
    chosen = random.Random(2).sample(names, min(READ_TOPICS, len(names)))
    for name in chosen:
        target = catalog.parts(view, catalog.require_topic(view, TopicName.parse(name)))
        for part in target:
            end = chain.read_limit(view, part.topic_id)
            plan = chain.plan_range(view, part.name, part.topic_id, part.partition, EARLIEST, end)
            started_s = time.perf_counter()
            messages += sum(batch.num_rows for slice_ in plan.slices for _, batch in reader.read(slice_))
            spent_s += time.perf_counter() - started_s
            for slice_ in plan.slices:
                places = slice_.batches()
                assert isinstance(slice_.file, FileRecord)
                numbers = [where.number for where in places]
                batches += len(numbers)
                encoded += slice_.file.length / slice_.file.batches * len(numbers)
                all_rows += sum(
                    b.num_rows for b in read_batches(slice_.file, lambda: paths, numbers, ("entry_id",), print)
                )
    topics = len(chosen)
    return (
        f"one topic: {messages / topics:,.0f} messages in {batches / topics:.1f} batches, "
        f"{all_rows / messages:.1f} rows decoded a message, {encoded / topics / 1e3:,.0f} kB read, "
        f"{1e3 * spent_s / topics:.1f} ms"
    )


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(case: Case, messages: int, directory: Path) -> str:
    """Measure one case, and return its row of the table."""
    root = Root.create(directory / "root")
    try:
        log = filled(root, case, messages)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            done = pool.apply(seal, (root.path, log.incarnation))
        found = reads(root)
    finally:
        shutil.rmtree(directory / "root")
    report = done.report
    return (
        f"{case.name:42} {messages / done.cpu_s:>9,.0f}/CPU s {messages / report.seconds:>9,.0f}/s wall "
        f"{report.journal_bytes / 1e6:>6,.0f} MB journal {report.file_bytes / 1e6:>5,.0f} MB sealed "
        f"{done.peak_mib:>5,.0f} MiB at most\n{'':42} {found}"
    )


def main() -> None:
    """Measure all cases and print a row for each."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as directory:
        for case in CASES if chosen is None else CASES[chosen : chosen + 1]:
            print(measure(case, messages, Path(directory)), flush=True)
    print(f"goal: {GOAL:,} messages of {MESSAGE_BYTES} bytes a second on one core")


if __name__ == "__main__":
    main()
