"""Redirects of requests to a broker's admin API."""

from __future__ import annotations

from email.message import Message
from typing import IO
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request

from typing_extensions import override


class RedirectsToOwners(HTTPRedirectHandler):
    """Repeats a request at the broker that serves the topic, as one of several brokers demands.

    The credentials go along, as with Pulsar's own clients: the broker that has got them names the other one. They are
    left out if the other broker is reached without TLS, and the first was not.
    """

    @override
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        """Return the same request for another URL; None, which is a refusal, unless that is an HTTP URL."""
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if after.scheme not in ("http", "https"):
            return None
        is_safe = before.scheme == "http" or after.scheme == "https"
        kept = {name: value for name, value in req.headers.items() if is_safe or name != "Authorization"}
        return Request(newurl, req.data, kept, method=req.get_method())
