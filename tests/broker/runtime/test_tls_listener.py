"""The properties of TLS connections that the broker relies on, on the event loop that it uses."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import uvloop

from pulsar_on_spark.broker.runtime.intake import Intake, Pause
from pulsar_on_spark.broker.runtime.tls import BrokerTls
from pulsar_on_spark.broker.runtime.tls_listener import TlsListener
from pulsar_on_spark.security.certificates import LocalCa
from pulsar_on_spark.security.tls import ServerTls
from tests.kit.tls_files import HOSTS, TlsFiles
from tests.kit.waiting import until

LIMIT_S = 60
HIGH_WATER_BYTES = 1 << 20
BUFFERED_BYTES = 16 << 20
"""More than the kernel and the loop together keep of a connection."""


class Server(asyncio.Protocol):
    """The broker's end of a connection."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers
        self.received = 0
        self.is_lost = False
        self.is_writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self.intake = Intake(self.transport, 1000)
        self.servers.append(self)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True


class Port:
    """A port with TLS, and its connections."""

    def __init__(self, files: TlsFiles, trust: Path | None = None) -> None:
        self.files = files
        self.servers: list[Server] = []
        self.tls = BrokerTls(ServerTls(files.host.certificate, files.host.key, trust, trust is not None), check_s=300)
        self.listener = TlsListener(self.tls, "the port without TLS is 1", LIMIT_S)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.number = self.socket.getsockname()[1]

    def made(self) -> Server:
        return Server(self.servers)

    async def connect(self, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.number, ssl=context, server_hostname="localhost", ssl_shutdown_timeout=1
        )

    async def pair(self) -> tuple[Server, asyncio.StreamReader, asyncio.StreamWriter]:
        """Both ends of a new connection."""
        number = len(self.servers)
        reader, writer = await self.connect(self.files.context())
        await until(lambda: len(self.servers) > number)
        return self.servers[number], reader, writer


@asynccontextmanager
async def listening(files: TlsFiles, trust: Path | None = None) -> AsyncIterator[Port]:
    port = Port(files, trust)
    port.listener.start(port.socket, port.made)
    try:
        yield port
    finally:
        await port.listener.stop()


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scene()

    uvloop.run(limited())


@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_client_that_hangs_up_while_reading_is_paused_is_noticed(files: TlsFiles, how: str) -> None:
    async def scene() -> None:
        async with listening(files) as port:
            server, _, writer = await port.pair()
            server.intake.pause(Pause.PENDING)
            writer.write(b"x" * 1000)
            await writer.drain()
            assert not server.intake.has_hung_up
            if how == "close":
                writer.close()
            else:
                writer.transport.abort()
            await until(lambda: server.intake.has_hung_up)
            server.transport.abort()
            await until(lambda: server.is_lost)

    run(scene)


def test_a_client_under_back_pressure_waits_and_loses_nothing(files: TlsFiles) -> None:
    async def scene() -> None:
        async with listening(files) as port:
            server, _, writer = await port.pair()
            server.intake.pause(Pause.BROKER)
            written, is_held = 0, False
            while not is_held:
                writer.write(bytes(50_000))
                written += 50_000
                assert written < BUFFERED_BYTES
                try:
                    await asyncio.wait_for(writer.drain(), 1)
                except TimeoutError:
                    is_held = True
            assert server.received == 0
            server.intake.resume(Pause.BROKER)
            await writer.drain()
            await until(lambda: server.received == written)

    run(scene)


def test_a_client_that_does_not_read_pauses_writing_until_it_reads(files: TlsFiles) -> None:
    async def scene() -> None:
        async with listening(files) as port:
            server, reader, _ = await port.pair()
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            written = 0
            while server.is_writable:
                server.transport.write(bytes(100_000))
                written += 100_000
                await asyncio.sleep(0)
                assert written < BUFFERED_BYTES
            assert server.transport.get_write_buffer_size() >= HIGH_WATER_BYTES
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await reader.readexactly(written)) == written
            await until(lambda: server.is_writable)

    run(scene)


def test_an_abort_drops_unread_data_at_once(files: TlsFiles) -> None:
    async def scene() -> None:
        async with listening(files) as port:
            server, reader, _ = await port.pair()
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            server.transport.write(bytes(BUFFERED_BYTES))
            server.transport.abort()
            await until(lambda: server.is_lost)

    run(scene)


def test_a_close_sends_what_is_written_first(files: TlsFiles) -> None:
    async def scene() -> None:
        async with listening(files) as port:
            server, reader, writer = await port.pair()
            server.transport.write(bytes(3_000_000))
            server.transport.close()
            assert len(await reader.read()) == 3_000_000
            writer.close()
            await until(lambda: server.is_lost)

    run(scene)


def test_a_client_that_ends_its_side_ends_the_connection(files: TlsFiles) -> None:
    async def scene() -> None:
        async with listening(files) as port:
            server, _, writer = await port.pair()
            raw = writer.get_extra_info("socket")
            with socket.socket(fileno=socket.dup(raw.fileno())) as same:
                same.shutdown(socket.SHUT_WR)
            await until(lambda: server.is_lost)

    run(scene)


def test_new_connections_get_the_new_certificate_and_live_ones_stay(files: TlsFiles) -> None:
    async def serial(writer: asyncio.StreamWriter) -> object:
        found = writer.get_extra_info("peercert")
        return found["serialNumber"]

    async def scene() -> None:
        async with listening(files) as port:
            server, _, before = await port.pair()
            files.ca.issue_host(HOSTS)
            await port.tls.check()
            _, _, after = await port.pair()
            assert await serial(before) != await serial(after)
            before.write(b"still here")
            await until(lambda: server.received == len(b"still here"))

    run(scene)


def test_cas_of_clients_are_replaced_too(files: TlsFiles, tmp_path: Path) -> None:
    trust = tmp_path / "trusted.pem"
    trust.write_bytes(files.ca.files.certificate.read_bytes())
    other = LocalCa.open(tmp_path / "other")
    former, latter = files.ca.issue_role("former"), other.issue_role("latter")

    writers = []

    async def is_served(port: Port, context: ssl.SSLContext) -> bool:
        number = len(port.servers)
        _, writer = await port.connect(context)
        writers.append(writer)  # else the connection ends with it
        try:
            while len(port.servers) == number:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        except OSError:
            return False
        return True

    async def scene() -> None:
        async with listening(files, trust) as port:
            assert await is_served(port, files.context(former))
            assert not await is_served(port, files.context(latter))
            trust.write_bytes(other.files.certificate.read_bytes())
            await port.tls.check()
            assert await is_served(port, files.context(latter))
            assert not await is_served(port, files.context(former))
            first = port.servers[0]
            assert not first.is_lost

    run(scene)
