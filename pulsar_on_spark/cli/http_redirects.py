"""Redirects of requests to a broker's admin API."""

from __future__ import annotations

from email.message import Message
from typing import IO
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request

from typing_extensions import override


class RedirectsToOwners(HTTPRedirectHandler):
    """Handler that repeats a request at another broker, if a broker redirects it there because it owns the topic.

    The credentials are sent along, as Pulsar's own clients do: a broker that has received them names the other broker.
    They are left out if the first broker was reached by TLS and the other one is not.
    """

    @override
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        """Return the same request for the new URL; None to refuse, if it is not an HTTP URL."""
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if after.scheme not in ("http", "https"):
            return None
        is_safe = before.scheme == "http" or after.scheme == "https"
        kept = {name: value for name, value in req.headers.items() if is_safe or name != "Authorization"}
        return Request(newurl, req.data, kept, method=req.get_method())
