"""A real root with a topic, and a listener of followers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain


@pytest.fixture
def root(memory_path: Path) -> Root:
    made = Root.create(memory_path / "root")
    made.create_topic("clicks")
    return made


class Heard:
    """A listener that records its callbacks."""

    def __init__(self) -> None:
        self.chain: LedgerChain | None = None
        self.grew = 0
        self.ended: list[LedgerId] = []

    def on_chain_grew(self, chain: LedgerChain) -> None:
        self.chain = chain
        self.grew += 1

    def on_chain_changed(self, chain: LedgerChain, ended: Sequence[LedgerId]) -> None:
        self.chain = chain
        self.ended += ended


@pytest.fixture
def heard() -> Heard:
    return Heard()
