"""The admin API with inputs that its own description allows, and some that it does not: never a 500.

The short run has one example of each operation, the same each time; the long one has many, wrong ones too, and others
each time.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests.kit.running_broker import RunningBroker

from .conftest import WAIT_MS

if TYPE_CHECKING:  # it takes a second to import, in each process that collects tests
    from schemathesis import Case, GenerationMode
    from schemathesis.schemas import APIOperation, BaseSchema

KNOWN = {
    "tenant": "fuzz",
    "namespace": "n",
    "topic": "t",
    "subscription": "s",
    "domain": "persistent",
    "name": "maxConsumersPerTopic",
}
"""Names that exist, so that paths lead to objects."""
SHORT_EXAMPLES, LONG_EXAMPLES = 1, 60


@pytest.fixture(scope="module")
def described(broker: RunningBroker) -> BaseSchema:
    import schemathesis

    return schemathesis.openapi.from_url(f"{broker.web_url}/openapi.json")


def make(admin: httpx.Client) -> None:
    """Recreate objects that a request may have deleted."""
    if admin.get("/persistent/fuzz/n/t/subscription/s/properties").status_code == 200:
        return
    for place, body in (
        ("/tenants/fuzz", {}),
        ("/namespaces/fuzz/n", None),
        ("/persistent/fuzz/n/t", None),
        ("/persistent/fuzz/n/t/subscription/s", {"ledgerId": -1, "entryId": -1}),
    ):
        assert admin.put(place, json=body).status_code in (204, 409)


def try_out(broker: RunningBroker, operation: APIOperation, mode: GenerationMode, examples: int) -> None:
    """Raises AssertionError if the broker fails."""

    @settings(
        max_examples=examples,
        derandomize=examples == SHORT_EXAMPLES,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), is_known=st.booleans() if examples > 1 else st.just(True))
    def ask(case: Case, is_known: bool) -> None:
        if is_known:
            case.path_parameters.update({name: value for name, value in KNOWN.items() if name in case.path_parameters})
        answer = case.call(base_url=broker.web_url, timeout=WAIT_MS / 1000)
        assert answer.status_code != 500, f"{answer.text} to {case.as_curl_command()}"

    ask()


def run_all(broker: RunningBroker, admin: httpx.Client, described: BaseSchema, examples: int) -> int:
    from schemathesis import GenerationMode

    tried = 0
    for each in described.get_all_operations():
        operation = each.ok()
        make(admin)
        try_out(broker, operation, GenerationMode.POSITIVE, examples)
        if examples > SHORT_EXAMPLES:  # to find out what can be wrong takes long
            with contextlib.suppress(Unsatisfiable):
                try_out(broker, operation, GenerationMode.NEGATIVE, examples)
        tried += 1
    return tried


def test_no_input_makes_the_broker_fail(broker: RunningBroker, admin: httpx.Client, described: BaseSchema) -> None:
    assert run_all(broker, admin, described, SHORT_EXAMPLES) > 100
    assert "Traceback" not in broker.said


@pytest.mark.soak
def test_no_input_makes_the_broker_fail_at_length(
    broker: RunningBroker, admin: httpx.Client, described: BaseSchema
) -> None:
    assert run_all(broker, admin, described, LONG_EXAMPLES) > 100
    assert "Traceback" not in broker.said
