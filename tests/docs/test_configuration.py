"""docs/configuration.md is what its command writes, and has every setting."""

from __future__ import annotations

from pathlib import Path

from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.services.settings_changes import DYNAMIC
from pulsar_on_spark.broker.services.settings_page import page

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), (
        "run python -m pulsar_on_spark.broker.services.settings_page > docs/configuration.md"
    )


def test_every_setting_is_on_the_page() -> None:
    written = page()
    stars = {name: " *" if name in DYNAMIC else "" for name in BrokerSettings.model_fields}
    assert [name for name, star in stars.items() if f"| `{name}`{star} |" not in written] == []
