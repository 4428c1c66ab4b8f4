"""Ports with TLS: connections are accepted one by one, at a limited rate because handshakes are costly.

A handshake costs the event loop half a millisecond or more, so a flood of them would starve the clients that are
connected. Above `HANDSHAKES_PER_S`, connections wait in the kernel. Because each handshake must end within a timeout,
this rate also limits how many run at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from pulsar_on_spark.broker.runtime.tls import BrokerTls

log = logging.getLogger(__name__)

HANDSHAKES_PER_S: Final = 200
"""Maximum number of handshakes that a port begins in a second."""
BURST: Final = 50
"""Maximum number of handshakes that a port begins at once after a pause."""
SHUTDOWN_TIMEOUT_S: Final = 5.0
"""Time in which a client must receive its remaining data and answer the end of the connection, in seconds."""
TLS_HANDSHAKE: Final = b"\x16\x03"
"""The first bytes of a client with TLS."""
_BACKLOG: Final = 1024
"""Maximum number of connections that the kernel queues until they are accepted."""
_RETRY_S: Final = 1.0
"""Pause after the system refuses to accept, because file descriptors are used up."""
_PLAIN: Final = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "BAD_RECORD_TYPE", "UNEXPECTED_MESSAGE")
"""OpenSSL's reasons for the first bytes of a client without TLS."""


class HandshakePace:
    """A pacer that decides when the next handshake may begin. Pure: the caller has the clock.

    Args:
        per_s: Number of handshakes per second.
        burst: Number of handshakes that may begin at once after a pause.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self._interval_s = 1 / per_s
        self._slack_s = (burst - 1) * self._interval_s
        self._next_s = 0.0

    def begin(self, now_s: float) -> float:
        """Count a handshake, and return the seconds to wait from `now_s` on before it begins."""
        begins_s = max(self._next_s, now_s - self._slack_s)
        self._next_s = begins_s + self._interval_s
        return max(0.0, begins_s - now_s)


class TlsListener:
    """The server socket of a port with TLS, which accepts clients and does their handshakes.

    Args:
        tls: The TLS context of the broker.
        remedy: The remedy for clients without TLS, such as "the port without TLS is 6650".
        handshake_timeout_s: Time in which a handshake must be over, in seconds.
    """

    def __init__(self, tls: BrokerTls, remedy: str, handshake_timeout_s: float) -> None:
        self._tls = tls
        self._remedy = remedy
        self._name = ""
        self._timeout_s = handshake_timeout_s
        self._pace = HandshakePace(HANDSHAKES_PER_S, BURST)
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: set[asyncio.Task[None]] = set()

    def start(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Accept clients on a bound socket, which is closed by `stop`.

        Args:
            listening: The bound socket.
            protocol: Creates the protocol of a new connection.
        """
        self._name = f"port {listening.getsockname()[1]}"
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._accepting = asyncio.create_task(self._accept(listening, protocol), name=f"accept at {self._name}")

    async def stop(self) -> None:
        """Stop accepting clients, and end the running handshakes."""
        tasks = [*self._handshakes, *filter(None, [self._accepting])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    client, address = await loop.sock_accept(listening)
                except ConnectionError:
                    continue
                except OSError as error:
                    log.error("No client can be accepted at %s: %s", self._name, error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                handshake = loop.create_task(self._shake_hands(client, f"{address[0]}:{address[1]}", protocol))
                self._handshakes.add(handshake)
                handshake.add_done_callback(self._handshakes.discard)
                # Other tasks get at least one turn, even if many clients wait for a handshake.
                await asyncio.sleep(self._pace.begin(loop.time()))

    async def _shake_hands(self, client: socket.socket, address: str, protocol: Callable[[], asyncio.Protocol]) -> None:
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                client,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
        except asyncio.CancelledError:
            client.close()
            raise
        except ssl.SSLError as error:
            self._refuse(client, address, self._why(error))
        except ConnectionAbortedError:
            self._refuse(client, address, f"it took longer than {self._timeout_s:g} s")
        except OSError as error:
            client.close()
            log.debug("The client %s disconnected during its handshake at %s: %s", address, self._name, error)
        except Exception:
            client.close()
            log.exception("The connection of %s at %s failed because of a bug in the broker.", address, self._name)

    def _why(self, error: ssl.SSLError) -> str:
        if error.reason in _PLAIN:
            return f"it sent plain text, and {self._remedy}"
        return str(error.reason or error).replace("_", " ").lower()

    def _refuse(self, client: socket.socket, address: str, why: str) -> None:
        client.close()
        log.warning(
            "The TLS handshake of %s at %s failed: %s.", address, self._name, why, extra={"connection": address}
        )
