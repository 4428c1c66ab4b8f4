"""The frames on a connection between client and broker: their encoding, and a splitter for a stream of bytes.

    [frame size u32][command size u32][BaseCommand][entry, with SEND and MESSAGE only]

All integers are big-endian. The frame size counts the bytes after it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeAlias

from pulsar_on_spark.model.errors import ProtocolError, TlsHandshakeError

MAX_MESSAGE_SIZE_BYTES = 5 * 1024 * 1024
"""Limit of the size of an entry's metadata and payload, which is Pulsar's default of `maxMessageSize`."""
FRAME_PADDING_BYTES = 10 * 1024
"""Bytes by which a frame may exceed the largest message (Pulsar's `Commands.MESSAGE_SIZE_FRAME_PADDING`)."""

Frame: TypeAlias = tuple[bytes, bytes]
"""The command's bytes, and the bytes after the command."""

_SIZES = struct.Struct(">II")
_SIZE_BYTES = 4
_TLS_HANDSHAKE = 0x1603
"""The first two bytes of a TLS handshake. No frame starts with these bytes, as its size would exceed every limit."""


def frame_of(command: bytes, entry_bytes: int = 0) -> bytes:
    """Return the frame of a command without its entry; the caller sends the entry, of `entry_bytes` bytes, after it."""
    return head_of(len(command), entry_bytes) + command


def head_of(command_bytes: int, entry_bytes: int = 0) -> bytes:
    """Return the 8 bytes with which a frame begins: the sizes of the frame and of its command.

    Args:
        command_bytes: Size of the command, in bytes.
        entry_bytes: Size of the entry after the command, in bytes; 0 for none.
    """
    return _SIZES.pack(_SIZE_BYTES + command_bytes + entry_bytes, command_bytes)


class FrameSplitter:
    """Splitter of a byte stream into frames, which buffers only the received part of an incomplete frame.

    Args:
        max_frame_bytes: Limit of a frame in bytes, with its size field.
        max_command_bytes: Limit of a frame's command, in bytes. A larger one is refused before all of it has arrived.

    Attributes:
        max_frame_bytes: The limit of the next frame, in bytes; the caller may change it between frames.
    """

    def __init__(self, max_frame_bytes: int, max_command_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._max_command_bytes = max_command_bytes
        self._tail = bytearray()
        """The received part of an incomplete frame."""

    @property
    def held_bytes(self) -> int:
        """Size of the received part of an incomplete frame, in bytes."""
        return len(self._tail)

    def split(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that end in these bytes of the stream. The caller must exhaust the iterator.

        The bytes of a frame are copied once, or twice if the frame arrived in several pieces.

        Raises:
            ProtocolError: a frame is larger than allowed, or its sizes contradict each other.
            TlsHandshakeError: the bytes are a TLS handshake.
        """
        at, end = 0, len(data)
        if self._tail:
            at = self._fill(data, 0, _SIZES.size)
            if len(self._tail) < _SIZES.size:
                return
            frame_bytes, command_bytes = self._sizes(self._tail, 0)
            at = self._fill(data, at, frame_bytes)
            if len(self._tail) < frame_bytes:
                return
            frame, self._tail = memoryview(self._tail), bytearray()
            entry_at = _SIZES.size + command_bytes
            yield frame[_SIZES.size : entry_at].tobytes(), frame[entry_at:].tobytes()
        while end - at >= _SIZES.size:
            frame_bytes, command_bytes = self._sizes(data, at)
            if end - at < frame_bytes:
                break
            command_at, after = at + _SIZES.size, at + frame_bytes
            entry_at = command_at + command_bytes
            yield data[command_at:entry_at], data[entry_at:after]
            at = after
        if at < end:
            self._tail += memoryview(data)[at:]

    def _fill(self, data: bytes, at: int, tail_bytes: int) -> int:
        """Extend the tail to `tail_bytes` or by all data; return the offset of the data's first unused byte."""
        piece = memoryview(data)[at : at + max(0, tail_bytes - len(self._tail))]
        self._tail += piece
        return at + len(piece)

    def _sizes(self, data: bytes | bytearray, at: int) -> tuple[int, int]:
        """Return the size of the frame at `at`, its size field included, and the size of its command."""
        size, command_bytes = _SIZES.unpack_from(data, at)
        frame_bytes = _SIZE_BYTES + size
        if size >> 16 == _TLS_HANDSHAKE:
            raise TlsHandshakeError("it began a TLS handshake on a port without TLS")
        if frame_bytes > self.max_frame_bytes:
            raise ProtocolError(f"a frame of {frame_bytes} bytes is larger than the {self.max_frame_bytes} allowed")
        if _SIZES.size + command_bytes > frame_bytes:
            raise ProtocolError(f"a frame of {frame_bytes} bytes cannot hold a command of {command_bytes}")
        if command_bytes > self._max_command_bytes:
            raise ProtocolError(
                f"a command of {command_bytes} bytes is larger than the {self._max_command_bytes} allowed"
            )
        return frame_bytes, command_bytes
