from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.s3_server import S3Server


@pytest.fixture(scope="package")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all these tests."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server
