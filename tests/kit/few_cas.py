"""One trusted CA instead of the hundred and more that clients of HTTP load for each request, in 60 ms of CPU.

Tests talk to brokers of their own, without TLS or with a CA that they name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

_END = "-----END CERTIFICATE-----\n"


@pytest.fixture(scope="module", autouse=True)
def one_trusted_ca(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust the first of the public CAs only."""
    file = tmp_path_factory.mktemp("trusted") / "ca.pem"
    first, end, _ = Path(certifi.where()).read_text().partition(_END)
    file.write_text(first + end)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(file))
        yield
