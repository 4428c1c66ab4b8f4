"""The ports of a broker: their sockets, their URLs, and the hosts that can reach them."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.listeners import Listener, Listeners, choose_listeners, parse_listeners

log = logging.getLogger(__name__)


class PortNumbers(NamedTuple):
    """The port numbers of a broker, None for a port that it does not have, and hints for clients at the wrong port."""

    binary: int | None
    binary_tls: int | None
    web: int | None
    web_tls: int | None

    @property
    def use_binary_tls(self) -> str:
        """A clause that names the right port, for the log line of a Pulsar client with TLS at the port without TLS."""
        return _with_tls(self.binary_tls, "broker_service_port_tls")

    @property
    def use_web_tls(self) -> str:
        """A clause that names the right port, for the log line of an HTTPS client at the port of HTTP."""
        return _with_tls(self.web_tls, "web_service_port_tls")

    @property
    def use_binary(self) -> str:
        """A clause that names the right port, for the log line of a Pulsar client without TLS at the port with TLS."""
        return _without_tls(self.binary)

    @property
    def use_web(self) -> str:
        """A clause that names the right port, for the log line of an HTTP client at the port of HTTPS."""
        return _without_tls(self.web)


def _with_tls(port: int | None, setting: str) -> str:
    return f"the port with TLS is {port}" if port is not None else f"there is no port with TLS, {setting} adds one"


def _without_tls(port: int | None) -> str:
    return f"the port without TLS is {port}" if port is not None else "there is no port without TLS"


@dataclass(frozen=True, slots=True)
class Ports:
    """The bound sockets of a broker; None for a port that it does not have.

    Attributes:
        binary: The socket for Pulsar's clients.
        binary_tls: The socket for Pulsar's clients with TLS.
        web: The socket for HTTP.
        web_tls: The socket for HTTPS.
    """

    binary: socket.socket | None
    binary_tls: socket.socket | None
    web: socket.socket | None
    web_tls: socket.socket | None

    def dup(self) -> Ports:
        """Return duplicates of the sockets, for servers that close their sockets."""
        return Ports(*(None if listening is None else listening.dup() for listening in self._all))

    @property
    def numbers(self) -> PortNumbers:
        """The numbers of the bound ports."""
        return PortNumbers(*(None if listening is None else int(listening.getsockname()[1]) for listening in self._all))

    @property
    def _all(self) -> tuple[socket.socket | None, ...]:
        return self.binary, self.binary_tls, self.web, self.web_tls


@contextmanager
def bound_ports(settings: BrokerSettings) -> Iterator[Ports]:
    """Return a context that binds the ports of the settings, and closes these sockets at its end.

    Raises:
        InvalidArgumentError: a port is in use, may not be bound or is given twice, or there is no port for clients or
            for HTTP.
    """
    for plain, tls in (
        ("broker_service_port", "broker_service_port_tls"),
        ("web_service_port", "web_service_port_tls"),
    ):
        if getattr(settings, plain) is None and getattr(settings, tls) is None:
            raise InvalidArgumentError(f"Neither {plain} nor {tls} is set: the broker needs one of them or both.")
    wanted = (
        (settings.broker_service_port, "--broker-port"),
        (settings.broker_service_port_tls, "broker_service_port_tls"),
        (settings.web_service_port, "--web-port"),
        (settings.web_service_port_tls, "web_service_port_tls"),
    )
    first_use: dict[int, str] = {}
    for port, option in wanted:
        if port and (other := first_use.setdefault(port, option)) != option:  # two sockets can be bound to one port
            raise InvalidArgumentError(f"Port {port} is given as {other} and as {option}: give two ports.")
    with ExitStack() as listening:
        bound = [
            None if port is None else listening.enter_context(closing(listen(settings.bind_address, port, option)))
            for port, option in wanted
        ]
        yield Ports(*bound)


def listeners_of(settings: BrokerSettings, ports: Ports) -> Listeners:
    """Return the URLs by which clients reach a broker with these ports, for each listener.

    Raises:
        InvalidArgumentError: the settings of advertised listeners contradict each other.
    """
    advertised = parse_listeners(settings.advertised_listeners)
    address = settings.advertised_address
    if advertised:
        if "advertised_address" in settings.model_fields_set:
            raise InvalidArgumentError(
                "Settings advertised_address and advertised_listeners are both set: leave one of them out."
            )
        internal = advertised.get(settings.internal_listener_name) or next(iter(advertised.values()))
        address = next(internal.hosts)
    host = f"[{address}]" if ":" in address else address
    schemes = ("pulsar", "pulsar+ssl", "http", "https")
    urls = (
        "" if port is None else f"{scheme}://{host}:{port}" for scheme, port in zip(schemes, ports.numbers, strict=True)
    )
    return choose_listeners(Listener(*urls), advertised, settings.internal_listener_name)


def check_reach(settings: BrokerSettings) -> None:
    """Warn if clients on other hosts can connect unauthenticated; refuse an advertised address that they cannot reach.

    Raises:
        InvalidArgumentError: the default bind_address would make an advertised address unreachable for other hosts.
    """
    if not _is_loopback(settings.bind_address):
        if settings.authentication_enabled:
            if _is_plain(settings):
                log.warning(
                    "The broker listens on %s without TLS: tokens and passwords can be read on the way. Set "
                    'broker_service_port and web_service_port to "" and serve the ports with TLS.',
                    settings.bind_address,
                )
        elif not _requires_certificates(settings):
            log.warning(
                "The broker listens on %s and authenticates no client: every host that reaches its ports may read, "
                "write and administer everything. Set bind_address to 127.0.0.1, or keep the ports behind a firewall.",
                settings.bind_address,
            )
        return
    if "bind_address" in settings.model_fields_set:
        return
    for name, host in _advertised(settings):
        if not _is_loopback(host):
            raise InvalidArgumentError(
                f"Setting {name} is {host!r}, but other hosts cannot reach the default bind_address "
                f"{settings.bind_address!r}: set bind_address to '0.0.0.0' if clients on other hosts shall be served "
                "without authentication, or to '127.0.0.1' if a program on this host forwards to it."
            )


def _requires_certificates(settings: BrokerSettings) -> bool:
    return settings.tls_require_trusted_client_cert_on_connect and not _is_plain(settings)


def _is_plain(settings: BrokerSettings) -> bool:
    return settings.broker_service_port is not None or settings.web_service_port is not None


def _advertised(settings: BrokerSettings) -> Iterator[tuple[str, str]]:
    listeners = parse_listeners(settings.advertised_listeners)
    if not listeners:
        yield "advertised_address", settings.advertised_address
    for listener in listeners.values():
        for host in listener.hosts:
            yield "advertised_listeners", host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def listen(address: str, port: int, option: str) -> socket.socket:
    """Bind a port, and return its socket, on which a server can listen later.

    Args:
        address: The IPv4 or IPv6 address, or the host name.
        port: The port; 0 for any free one.
        option: The option or setting by which an operator chooses another port, for the error.

    Raises:
        InvalidArgumentError: the port is in use, or binding it is not permitted.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, port))
    except OSError as error:
        listening.close()
        raise InvalidArgumentError(
            f"Port {port} of {address} cannot be bound ({error.strerror}): stop the process that uses it, or set "
            f"another {option}."
        ) from error
    return listening
