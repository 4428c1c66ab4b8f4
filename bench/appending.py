"""Appends by disk and threads alone, which bound the latency of a journal and of a single send."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory


def append_alone(folders: Sequence[Path], acks: int, size_bytes: int, seconds: float) -> list[float]:
    """Append to a file in each folder again and again: one write and one fdatasync, in a thread for each file.

    Args:
        folders: The folders; one that stands twice has two files.
        acks: Number of files that must be synced before the next bytes are appended.
        size_bytes: The number of bytes of each append.
        seconds: The duration.

    Returns:
        The milliseconds from each append to the sync of the `acks` fastest files.
    """
    taken_ms: list[float] = []
    waiting: list[SimpleQueue[bytes | None]] = [SimpleQueue() for _ in folders]
    synced: SimpleQueue[int] = SimpleQueue()

    def append(folder: Path, frames: SimpleQueue[bytes | None]) -> None:
        with TemporaryDirectory(dir=folder) as name:
            file = os.open(Path(name) / "frames", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            for number, frame in enumerate(iter(frames.get, None)):
                os.write(file, frame)
                os.fdatasync(file)
                synced.put(number)
            os.close(file)

    frame = os.urandom(size_bytes)
    with ThreadPoolExecutor(len(folders)) as threads:
        running = [threads.submit(append, *each) for each in zip(folders, waiting, strict=True)]
        end_s = time.perf_counter() + seconds
        while (begun_s := time.perf_counter()) < end_s:
            for frames in waiting:
                frames.put(frame)
            done = 0
            while done < acks:
                done += synced.get() == len(taken_ms)  # others are late
            taken_ms.append((time.perf_counter() - begun_s) * 1000)
        for frames in waiting:
            frames.put(None)
        for each in running:
            each.result()
    return taken_ms
