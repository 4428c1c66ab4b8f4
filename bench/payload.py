"""Distinct values of 1,024 bytes that compress like real JSON events: zstd level 1 makes them 3 to 4 times smaller.

Real events share field names and shapes, and differ in ids, times, amounts and words. Rows are built as a byte matrix,
first the template and then the parts that differ, so that millions of them take seconds.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Bytes = npt.NDArray[np.uint8]

VALUE_SIZE_BYTES = 1_024
CHUNK_ROWS = 50_000
KEYS = 10_000
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.binary())])

HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
DIGITS = np.frombuffer(b"0123456789", np.uint8)
WORD_SIZE_BYTES = 9

# <N> is the row's number, <hN> and <dN> are N random hex and decimal digits, <w> is a word of the vocabulary.
_ITEM = '{"sku":"<h32>","price":1<d2>.<d2>,"quantity":<d1>,"warehouse":"<w>"}'
_TEMPLATE = (
    '{"event_id":"<h32>","sequence":<N>,"type":"order.created","version":3,"occurred_at":"2013-0<d1>-1<d1>T1<d1>:2<d1>:3<d1>.<d6>Z",'
    '"customer":{"id":"c-<d8>","first_name":"<w>","last_name":"<w>","segment":"<w>","newsletter":true},'
    '"device":{"fingerprint":"<h32>","browser":"Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/12<d1>.0"},'
    '"location":{"latitude":40.<d6>,"longitude":-73.<d6>,"city":"<w>"},"items":[' + ",".join([_ITEM] * 3) + "],"
    '"payment":{"method":"card","token":"<h40>","currency":"EUR","amount":1<d3>.<d2>},'
    '"trace":"<h48>","comment":"<w> <w> <w> <w> <w>"'
)


def value_batches(rows: int, seed: int = 2013) -> Iterator[pa.RecordBatch]:
    """Yield batches of up to 50,000 rows: `key`, one of 10,000 strings, and `value`; the same for the same seed."""
    random = np.random.default_rng(seed)
    vocabulary = _vocabulary(random)
    for start in range(0, rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, rows - start)
        matrix = _matrix(start, count, random, vocabulary)
        offsets = np.arange(count + 1, dtype=np.int32) * VALUE_SIZE_BYTES
        values = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(matrix)])
        names = pa.array([f"customer-{number:05}" for number in range(KEYS)])
        keys = names.take(pa.array(random.integers(0, KEYS, count)))
        yield pa.record_batch([keys, values], schema=SCHEMA)


def write_parquet(directory: Path, rows: int, rows_per_file: int) -> None:
    """Write the rows as zstd Parquet files of `rows_per_file` each, unless the folder has exactly these rows."""
    done = directory / f"_done_{rows}_{rows_per_file}_{zlib.crc32(_TEMPLATE.encode()):08x}"
    if done.exists():
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for number, first in enumerate(range(0, rows, rows_per_file)):
        with pq.ParquetWriter(
            directory / f"part-{number:03}.parquet",
            SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=["key"],
        ) as writer:
            for batch in value_batches(min(rows_per_file, rows - first), seed=2013 + number):
                writer.write_batch(batch)
    done.touch()


def zstd_ratio(rows: int = 20_000) -> float:
    """Return the ratio of the raw size to the size by zstd level 1, in blocks of 1 MiB like a segment's batches."""
    values = next(value_batches(rows)).column("value").buffers()[2]
    codec = pa.Codec("zstd", compression_level=1)
    blocks = [values.slice(start, min(1 << 20, values.size - start)) for start in range(0, values.size, 1 << 20)]
    return float(values.size / sum(codec.compress(block).size for block in blocks))


def _vocabulary(random: np.random.Generator) -> Bytes:
    letters = np.frombuffer(b"eeeeaaaiioonnttrrsslldhcumpfgvbkwyjxzq", np.uint8)
    return letters[random.integers(0, len(letters), (2_000, WORD_SIZE_BYTES))]


def _matrix(start: int, count: int, random: np.random.Generator, vocabulary: Bytes) -> Bytes:
    parts: list[Bytes] = []
    for piece in _TEMPLATE.replace(">", "<").split("<"):
        if piece == "N":
            parts.append(_decimal(np.arange(start, start + count) + 10**11, 12))
        elif piece == "w":
            parts.append(vocabulary[random.integers(0, len(vocabulary), count)])
        elif piece[:1] in ("h", "d") and piece[1:].isdecimal():
            alphabet = HEX if piece[0] == "h" else DIGITS
            parts.append(alphabet[random.integers(0, len(alphabet), (count, int(piece[1:])))])
        elif piece:
            parts.append(_repeat(piece.encode(), count))
    size = sum(part.shape[1] for part in parts)
    rest = VALUE_SIZE_BYTES - size - len(',"pad":""}')
    assert rest >= 0, f"the template makes {size} bytes, which leaves no room in {VALUE_SIZE_BYTES}"
    parts.append(_repeat(b',"pad":"' + b"." * rest + b'"}', count))
    return np.ascontiguousarray(np.hstack(parts))


def _repeat(text: bytes, count: int) -> Bytes:
    return np.broadcast_to(np.frombuffer(text, np.uint8), (count, len(text)))


def _decimal(numbers: npt.NDArray[np.int64], digits: int) -> Bytes:
    powers = 10 ** np.arange(digits - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)
