"""Advertised listeners: the URLs by which clients of one network reach a broker (Pulsar's `advertisedListeners`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from pulsar_on_spark.model.errors import InvalidArgumentError

_FIELDS: Final = {
    "pulsar": "service_url",
    "pulsar+ssl": "service_url_tls",
    "http": "web_url",
    "https": "web_url_tls",
}
_EXAMPLE: Final = "internal:pulsar://broker-1:6650,external:pulsar+ssl://broker.example.com:6651"


@dataclass(frozen=True, slots=True)
class Listener:
    """The URLs of a broker for clients of one network; "" for a URL that it does not have.

    Attributes:
        service_url: The `pulsar://` URL.
        service_url_tls: The `pulsar+ssl://` URL.
        web_url: The `http://` URL.
        web_url_tls: The `https://` URL.
    """

    service_url: str = ""
    service_url_tls: str = ""
    web_url: str = ""
    web_url_tls: str = ""

    @property
    def any_service_url(self) -> str:
        """The URL for Pulsar's clients without TLS, or with TLS if there is no other; "" without both."""
        return self.service_url or self.service_url_tls

    @property
    def any_web_url(self) -> str:
        """The HTTP URL without TLS, or with TLS if there is no other; "" without both."""
        return self.web_url or self.web_url_tls

    @property
    def hosts(self) -> Iterator[str]:
        """The host names in all URLs."""
        for url in (self.service_url, self.service_url_tls, self.web_url, self.web_url_tls):
            if url:
                yield host_of(url)


@dataclass(frozen=True, slots=True)
class Listeners:
    """All listeners of a broker.

    Attributes:
        default: The URLs for clients that name no listener.
        named: The URLs of all advertised listeners, by name.
    """

    default: Listener
    named: Mapping[str, Listener]

    def get(self, name: str) -> Listener | None:
        """Return the URLs for a client that names this listener ("" for no name); None if there is no such listener."""
        return self.named.get(name) if name else self.default

    @property
    def hosts(self) -> Iterator[str]:
        """The host names in all URLs."""
        for listener in (self.default, *self.named.values()):
            yield from listener.hosts


def parse_listeners(advertised: str) -> dict[str, Listener]:
    """Return the listeners in the setting `advertised_listeners`, by name.

    The setting is a list of `name:scheme://host:port`, separated by commas.

    Raises:
        InvalidArgumentError: the text has another form, a listener has two URLs of one kind, or two listeners share a
            URL.
    """
    listeners: dict[str, Listener] = {}
    names: dict[str, str] = {}
    for text in filter(None, map(str.strip, advertised.split(","))):
        name, _, url = text.partition(":")
        name, url = name.strip(), url.strip()
        kind = _FIELDS.get(url.partition("://")[0])
        if not name or kind is None or not _is_address(url):
            raise _refused(f"has {text!r}, which is not like {_EXAMPLE}")
        listener = listeners.get(name, Listener())
        if getattr(listener, kind):
            raise _refused(f"gives listener {name!r} two {url.partition('://')[0]} URLs")
        if names.setdefault(url, name) != name:
            raise _refused(f"gives {url} to the listeners {names[url]!r} and {name!r}")
        listeners[name] = replace(listener, **{kind: url})
    return listeners


def choose_listeners(own: Listener, advertised: Mapping[str, Listener], internal_name: str) -> Listeners:
    """Return the listeners of a broker: the URLs that clients get by the listener that they name.

    Args:
        own: The URLs with the broker's own address and ports.
        advertised: The listeners in the settings; may be empty.
        internal_name: Name of the listener for clients that name none; "" for the first listener in the settings.

    Raises:
        InvalidArgumentError: there is no listener of this name, or a listener has no URL for Pulsar's clients.
    """
    if internal_name and internal_name not in advertised:
        raise InvalidArgumentError(
            f"Setting internal_listener_name is {internal_name!r}, which advertised_listeners does not have: add it "
            "there, or leave the setting out."
        )
    for name, listener in advertised.items():
        if not listener.any_service_url:
            raise _refused(f"gives listener {name!r} no pulsar:// or pulsar+ssl:// URL")
    # Clients need an HTTP URL for each listener, but most listeners in settings have none.
    web = {} if not own.any_web_url else {"web_url": own.web_url, "web_url_tls": own.web_url_tls}
    named = {name: each if each.any_web_url else replace(each, **web) for name, each in advertised.items()}
    if not named:
        return Listeners(own, {})
    return Listeners(named[internal_name or next(iter(named))], named)


def host_of(url: str) -> str:
    """Return the host of a URL, without port and brackets; "" if it has none."""
    return urlsplit(url).hostname or ""


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname and parts.port) and not (parts.path or parts.query or parts.fragment)
    except ValueError:
        return False


def _refused(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"Setting advertised_listeners {what}: correct it.")
