"""Redirects of requests to a broker's admin API."""

from __future__ import annotations

from email.message import Message
from typing import IO
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request

from typing_extensions import override


class RedirectsToOwners(HTTPRedirectHandler):
    """Handler that repeats a request at the broker that owns the topic, if another broker redirects it there.

    The credentials are sent again, as by Pulsar's own clients, because the first broker, which has them already, is
    trusted to name the owner. They are left out if the first broker was reached by TLS and the owner is not.
    """

    @override
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        """Return the same request for the new URL; None, which refuses the redirect, if that is not an HTTP URL."""
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if after.scheme not in ("http", "https"):
            return None
        is_safe = before.scheme == "http" or after.scheme == "https"
        kept = {name: value for name, value in req.headers.items() if is_safe or name != "Authorization"}
        return Request(newurl, req.data, kept, method=req.get_method())
