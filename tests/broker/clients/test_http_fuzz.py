"""The admin API with inputs that its own description allows, and some that it does not, as five kinds of clients.

None makes the broker fail. A client without a right gets nothing but refusals, and has changed nothing in the end. The
short run has one example of each operation, the same each time. The longer ones have many, wrong ones too, and others
each time: FUZZ_SEED repeats one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httpx
import jwt
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from requests.adapters import HTTPAdapter

from pulsar_on_spark.metadata.records import (
    FileRecord,
    IdsRecord,
    IncarnationRecord,
    LedgerRecord,
    Record,
    SealRecord,
    SegmentRecord,
    TopicRecord,
)
from pulsar_on_spark.root import Root
from tests.broker.security.expected import MAY, ROUTES
from tests.broker.security.routes import requests_of, route_of
from tests.kit.running_broker import RunningBroker
from tests.kit.token_settings import token_settings

from .conftest import WAIT_MS

if TYPE_CHECKING:  # it takes a second to import, in each process that collects tests
    from schemathesis import Case, GenerationMode
    from schemathesis.schemas import APIOperation, BaseSchema

SECRET = os.urandom(32)
OWN, FOREIGN = "fuzz", "other"
"""Two tenants with the same objects; `keeper` administers the first one."""
KNOWN = {
    "tenant": OWN,
    "namespace": "n",
    "topic": "t",
    "local": "t",
    "subscription": "s",
    "domain": "persistent",
    "name": "maxConsumersPerTopic",
}
"""Names that exist, so that paths lead to objects."""
SHORT_EXAMPLES, LONG_EXAMPLES, SOAK_EXAMPLES = 1, 2, 60
SEED = int(os.environ.get("FUZZ_SEED", random.randrange(1 << 32)))
OF_THE_BROKER = {IncarnationRecord, SealRecord, LedgerRecord, FileRecord, SegmentRecord}
"""Records that the broker writes by itself while clients are idle: it seals what they sent before."""
REFUSALS_OF_A_HOST = 15
"""After 20 in a minute its answers wait, so each address of this host sends no more."""


@pytest.fixture(scope="module")
def broker(memory_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    settings = token_settings(tmp_path_factory.mktemp("secret"), SECRET)
    with RunningBroker(memory_folder / "fuzzed", settings) as running:
        yield running


def bearer(role: str, secret: bytes = SECRET) -> dict[str, str]:
    return {"Authorization": f"Bearer {jwt.encode({'sub': role}, secret, 'HS256')}"}


@pytest.fixture(scope="module")
def root(broker: RunningBroker) -> Iterator[httpx.Client]:
    url = f"{broker.web_url}/admin/v2"
    with httpx.Client(base_url=url, headers=bearer("root"), timeout=WAIT_MS / 1000) as made:
        yield made


@pytest.fixture(scope="module")
def described(broker: RunningBroker) -> BaseSchema:
    import schemathesis

    return schemathesis.openapi.from_url(f"{broker.web_url}/openapi.json", headers=bearer("root"))


def make_objects(root: httpx.Client, tenant: str, keeper: str) -> None:
    """Recreate what a request may have deleted, and give the tenant back to its administrator."""
    found = root.get(f"/tenants/{tenant}")
    if found.is_success and found.json()["adminRoles"] == [keeper]:
        if root.get(f"/persistent/{tenant}/n/t/subscription/s/properties").is_success:
            return
    else:
        method = "POST" if found.is_success else "PUT"
        assert root.request(method, f"/tenants/{tenant}", json={"adminRoles": [keeper]}).is_success
    for place, body in (
        (f"/namespaces/{tenant}/n", None),
        (f"/persistent/{tenant}/n/t", None),
        (f"/persistent/{tenant}/n/t/subscription/s", {"ledgerId": -1, "entryId": -1}),
    ):
        assert root.put(place, json=body).status_code in (204, 409)


# -- what is asked -----------------------------------------------------------------------------------------------------


def cases_of(operation: APIOperation, mode: GenerationMode, examples: int) -> list[Case]:
    made: list[Case] = []

    @seed(SEED)
    @settings(
        max_examples=examples,
        derandomize=examples == SHORT_EXAMPLES,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), is_known=st.booleans() if examples > 1 else st.just(True))
    def note(case: Case, is_known: bool) -> None:
        if is_known:
            case.path_parameters.update({name: value for name, value in KNOWN.items() if name in case.path_parameters})
        made.append(case)

    note()
    return made


def all_cases(described: BaseSchema, examples: int) -> Iterator[list[Case]]:
    """The cases of each operation."""
    from schemathesis import GenerationMode

    for each in described.get_all_operations():
        operation = each.ok()
        cases = cases_of(operation, GenerationMode.POSITIVE, examples)
        if examples > SHORT_EXAMPLES:  # to find out what can be wrong takes long
            with contextlib.suppress(Unsatisfiable):
                cases += cases_of(operation, GenerationMode.NEGATIVE, examples)
        yield cases


# -- clients -----------------------------------------------------------------------------------------------------------


class FromAddress(HTTPAdapter):
    """Connections from one address of this host."""

    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, source_address=(self._address, 0), **options)


class Fuzzer:
    """A client that sends cases with the same credentials."""

    def __init__(self, broker: RunningBroker, role: str, headers: dict[str, str], addresses: Iterator[str]) -> None:
        self.role = role
        self.answers = Counter[int]()
        self._broker = broker
        self._headers = headers
        self._addresses = addresses
        self._refusals = 0
        self._session = self._new_session()

    def send(self, case: Case) -> None:
        """Raises AssertionError if the broker fails, or does anything but refuse what it must refuse."""
        answer = case.call(
            base_url=self._broker.web_url, session=self._session, headers=self._headers, timeout=WAIT_MS / 1000
        )
        status = answer.status_code
        self.answers[status] += 1
        told = f"{status} to {self.role}: {case.as_curl_command()}: {answer.text}"
        assert status not in (429, 500), told
        path = unquote(answer.request.path_url.partition("?")[0])
        assert self.role in roles_that_may(case.method, path) or is_refusal(case, status, self.role), told
        self._refusals += status == 401
        if self._refusals >= REFUSALS_OF_A_HOST:
            self._refusals = 0
            self._session.close()
            self._session = self._new_session()

    def _new_session(self) -> requests.Session:
        made = requests.Session()
        made.mount("http://", FromAddress(next(self._addresses)))
        return made


def is_refusal(case: Case, status: int, role: str) -> bool:
    """True for the answers to a role without the permission: an authenticated one may learn of invalid names, too."""
    if role in ("unknown", "forger"):
        return status == 401
    if case.path_parameters.get("tenant", OWN) not in (OWN, FOREIGN, "public") and status == 404:
        return True
    names = {**case.path_parameters, "tenant": OWN}
    has_valid_names = all(names.get(name, valid) == valid for name, valid in KNOWN.items())
    return status in ((401, 403) if has_valid_names else (401, 403, 412))


def addresses() -> Iterator[str]:
    for number in itertools.count(1):
        yield f"127.{number // 60_000 + 1}.{number // 250 % 240}.{number % 250 + 1}"


def expected_rules() -> dict[tuple[str, str], list[tuple[str, str | None]]]:
    """The rules that the table has for each route, with the policies for which they count."""
    found = defaultdict(list)
    for rule in ROUTES:
        for method, path in requests_of(rule):
            if (at := route_of(method, path.replace("TOPIC", "t"))) is not None:
                found[method, at[0].path].append((rule, at[1].get("policy")))
    return found


RULES = expected_rules()


def roles_that_may(method: str, path: str) -> set[str]:
    """The roles that the table of expected answers allows a request, or any request of its route."""
    at = route_of("GET" if method == "HEAD" else method, path)
    if at is None:
        return {"root"}
    rules = RULES["GET" if method == "HEAD" else method, at[0].path]
    policy = at[1].get("policy")
    applying = [rule for rule, of in rules if of == policy] or [rule for rule, _ in rules]
    keeper = "admin" if at[1].get("tenant") == OWN else "other-admin"
    names = {
        "unknown": "unauthenticated",
        "forger": "unauthenticated",
        "stranger": "stranger",
        "keeper": keeper,
        "root": "root",
    }
    return {role for role, name in names.items() if any(name in MAY[rule][0] for rule in applying)}


# -- what there is in the end ------------------------------------------------------------------------------------------


def records_of(broker: RunningBroker, *, but_own: bool = False) -> dict[tuple[str, str], str]:
    """The metadata, without what the broker writes by itself; `but_own` leaves out what belongs to the tenant `OWN`."""
    view = Root.open(broker.root).store.view()
    left_out = OF_THE_BROKER | ({IdsRecord} if but_own else set())
    found = {
        (kind.kind, record.record_id): record.model_dump_json()
        for kind in set(Record.__subclasses__()) - left_out
        for record in view.all(kind)
    }
    names = [OWN, *(record.topic_id for record in view.all(TopicRecord) if f"//{OWN}/" in record.name)] * but_own
    return {key: content for key, content in found.items() if not any(name in f"{key[1]} {content}" for name in names)}


# -- the tests ---------------------------------------------------------------------------------------------------------


def run_all(broker: RunningBroker, root: httpx.Client, described: BaseSchema, examples: int) -> None:
    print(f"FUZZ_SEED={SEED}")
    make_objects(root, OWN, "keeper")
    make_objects(root, FOREIGN, "another-keeper")
    cases = list(all_cases(described, examples))
    assert len(cases) > 100
    hosts = addresses()
    before = records_of(broker)
    for fuzzer in (
        Fuzzer(broker, "unknown", {}, hosts),
        Fuzzer(broker, "forger", bearer("root", b"x" * 32), hosts),
        Fuzzer(broker, "stranger", bearer("stranger"), hosts),
    ):
        for case in itertools.chain.from_iterable(cases):
            fuzzer.send(case)
        print(fuzzer.role, dict(fuzzer.answers))
        assert records_of(broker) == before
    foreign = records_of(broker, but_own=True)
    assert len(foreign) > 5
    keeper, admin = (Fuzzer(broker, role, bearer(role), hosts) for role in ("keeper", "root"))
    for of_operation in cases:
        make_objects(root, OWN, "keeper")
        for case in of_operation:
            keeper.send(case)
            if case.path_parameters.get("tenant") == OWN:
                case.path_parameters["tenant"] = FOREIGN
                keeper.send(case)
                case.path_parameters["tenant"] = OWN
    print(keeper.role, dict(keeper.answers))
    assert records_of(broker, but_own=True) == foreign
    for of_operation in cases:
        make_objects(root, OWN, "keeper")
        for case in of_operation:
            admin.send(case)
    print(admin.role, dict(admin.answers))
    assert keeper.answers[204] > 0 < admin.answers[204], "some did what they ask for"
    assert "Traceback" not in broker.said


@pytest.mark.long
def test_no_input_makes_the_broker_fail(broker: RunningBroker, root: httpx.Client, described: BaseSchema) -> None:
    run_all(broker, root, described, SHORT_EXAMPLES)


@pytest.mark.soak
def test_no_input_makes_the_broker_fail_with_wrong_ones(
    broker: RunningBroker, root: httpx.Client, described: BaseSchema
) -> None:
    run_all(broker, root, described, LONG_EXAMPLES)


@pytest.mark.soak
def test_no_input_makes_the_broker_fail_at_length(
    broker: RunningBroker, root: httpx.Client, described: BaseSchema
) -> None:
    run_all(broker, root, described, SOAK_EXAMPLES)
