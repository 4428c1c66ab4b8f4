"""Brokers whose clocks differ by hours, by libfaketime; their monotonic clocks are right."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import libfaketime
from typing_extensions import override

from tests.kit.broker_cluster import BrokerCluster

SHIFTS: Final = ("-5h", "+0h", "+7h")
_LIBRARY: Final = Path(libfaketime.__file__).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"


class ShiftedCluster(BrokerCluster):
    """Three brokers, each with a clock of its own."""

    @override
    def _prefix_of(self, number: int) -> tuple[str, ...]:
        return ("env", f"LD_PRELOAD={_LIBRARY}", f"FAKETIME={SHIFTS[number]}", "FAKETIME_DONT_FAKE_MONOTONIC=1")
