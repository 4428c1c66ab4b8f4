"""The broker's HTTP face: an official client that has nothing else at first, and plain requests."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import httpx
import pulsar
import pytest

from pulsar_on_spark.root import Root
from tests.kit.running_broker import RunningBroker

from .conftest import new_client

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
LATER = AVRO.replace("}]", '}, {"name": "b", "type": ["null", "int"], "default": null}]')
TIMEOUT_S = 30


def ask(broker: RunningBroker, path: str, body: object = None) -> tuple[int, str]:
    """Status and body of a GET, or of a POST where there is something to say."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.web_url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def reason(broker: RunningBroker, path: str, body: object = None) -> tuple[int, str]:
    status, text = ask(broker, path, body)
    answer = json.loads(text)
    assert set(answer) == {"reason"}
    return status, answer["reason"]


def json_of(broker: RunningBroker, path: str, body: object = None) -> Any:
    status, text = ask(broker, path, body)
    assert status == 200, text
    return json.loads(text)


@pytest.fixture
def http_client(broker: RunningBroker) -> Iterator[pulsar.Client]:
    made = new_client(broker.web_url)
    yield made
    made.close()


def test_a_client_that_knows_only_the_http_url(http_client: pulsar.Client, topic: str) -> None:
    schema = pulsar.schema.StringSchema()
    producer = http_client.create_producer(topic, schema=schema)
    consumer = http_client.subscribe(topic, "s", schema=schema)
    producer.send("hello")
    assert consumer.receive(TIMEOUT_S * 1000).value() == "hello"


def test_a_regular_expression_over_http(http_client: pulsar.Client, topic: str) -> None:
    http_client.create_producer(topic).send(b"1")
    pattern = re.compile(f"persistent://public/default/{topic}")
    consumer = http_client.subscribe(pattern, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert consumer.receive(TIMEOUT_S * 1000).data() == b"1"


def test_lookups_return_all_urls_and_create_no_topic(broker: RunningBroker, topic: str) -> None:
    answer = json_of(broker, f"/lookup/v2/topic/persistent/public/default/{topic}?authoritative=false")
    assert (answer["brokerUrl"], answer["httpUrl"]) == (broker.url, broker.web_url)
    assert {answer["brokerUrlTls"], answer["httpUrlTls"], answer["brokerUrlSsl"]} == {""}
    assert f"persistent://public/default/{topic}" not in json_of(broker, "/admin/v2/namespaces/public/default/topics")


def test_a_listener_may_be_named_in_a_header(broker: RunningBroker) -> None:
    url = f"{broker.web_url}/lookup/v2/topic/persistent/public/default/a"
    assert httpx.get(url, headers={"X-Pulsar-ListenerName": "b"}, timeout=TIMEOUT_S).status_code == 503


@pytest.mark.parametrize("path", ["/status.html", "/metrics", "/admin/v2/brokers/health", "/admin/v2/clusters"])
def test_head_is_get_without_a_body(broker: RunningBroker, path: str) -> None:
    """As in Pulsar: load balancers ask so."""
    answer = httpx.head(broker.web_url + path, timeout=TIMEOUT_S)
    assert (answer.status_code, answer.content) == (200, b"")
    assert httpx.head(f"{broker.web_url}/admin/v2/clusters/none", timeout=TIMEOUT_S).status_code == 404


def test_partitions(broker: RunningBroker, topic: str) -> None:
    path = f"/admin/v2/persistent/public/default/{topic}/partitions"
    assert reason(broker, path)[0] == 404
    assert json_of(broker, f"{path}?checkAllowAutoCreation=true") == {"partitions": 0}
    assert reason(broker, path)[0] == 404, "without partitions, a topic is made by its first producer or consumer"
    assert f"persistent://public/default/{topic}" not in json_of(broker, "/admin/v2/namespaces/public/default/topics")
    Root.open(broker.root).create_topic(topic)
    assert json_of(broker, path) == {"partitions": 0}


def test_schemas(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    path = f"/admin/v2/schemas/public/default/{topic}"
    body = {"type": "AVRO", "schema": AVRO, "properties": {"k": "v"}}
    later = {"type": "AVRO", "schema": LATER}
    assert reason(broker, f"{path}/schema")[0] == 404
    assert json_of(broker, f"{path}/schema", body) == {"version": {"version": 0}}
    assert json_of(broker, f"{path}/schema", body | {"schema": json.dumps(json.loads(AVRO), indent=2)}) == {
        "version": {"version": 0}
    }
    found = json_of(broker, f"{path}/schema")
    assert found.pop("timestamp") > 0
    assert found == {"version": 0, "type": "AVRO", "data": AVRO, "properties": {"k": "v"}}
    assert json_of(broker, f"{path}/compatibility", later) == {
        "compatibility": True,
        "schemaCompatibilityStrategy": "FULL",
    }
    assert reason(broker, f"{path}/version", later)[0] == 404
    assert json_of(broker, f"{path}/schema", later) == {"version": {"version": 1}}
    assert json_of(broker, f"{path}/version", later) == {"version": 1}
    assert json_of(broker, f"{path}/schema/0")["data"] == AVRO
    assert [each["version"] for each in json_of(broker, f"{path}/schemas")["getSchemaResponses"]] == [0, 1]
    assert reason(broker, f"{path}/schema/7")[0] == 404

    status, why = reason(broker, f"{path}/schema", {"type": "AVRO", "schema": AVRO.replace('"a"', '"c"')})
    assert status == 409
    assert "field 'c' is missing and has no default value" in why
    assert reason(broker, f"{path}/schema", {"type": "AVRO", "schema": " " * (1 << 20)})[0] == 422
    assert reason(broker, f"{path}/schema", {"type": "AVRO", "schema": " " * (5 << 20)})[0] == 413
    other = {"type": "STRING", "schema": ""}
    assert json_of(broker, f"{path}/compatibility", other)["compatibility"] is False
    assert reason(broker, f"{path}/schema", {"type": "AVRO", "schema": "{"})[0] == 422
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=pulsar.schema.StringSchema())


def test_a_deleted_schema_can_be_declared_again(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    path = f"/schemas/public/default/{topic}"
    avro = pulsar.schema.AvroSchema(None, schema_definition=json.loads(AVRO))
    producer = client.create_producer(topic, schema=avro)
    consumer = client.subscribe(topic, "s", schema=pulsar.schema.BytesSchema())
    producer.send({"a": 1})
    assert admin.get(f"{path}/metadata").json()["index"] == [{"ledgerId": -1, "entryId": -1, "version": 0}]
    assert admin.delete(f"{path}/schema").json() == {"version": 1}
    for place, method in (("schema", "GET"), ("schema", "DELETE"), ("metadata", "GET")):
        answer = admin.request(method, f"{path}/{place}")
        assert (answer.status_code, "has no schema" in answer.json()["reason"]) == (404, True)
    assert admin.get(f"{path}/schemas").json() == {"getSchemaResponses": []}
    assert admin.get(f"{path}/schema/0").status_code == 404

    producer.send({"a": 2})
    assert admin.get(f"{path}/schema").status_code == 404
    client.create_producer(topic, schema=pulsar.schema.StringSchema()).send("3")
    assert admin.get(f"{path}/schema").json()["version"] == 2
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=avro)
    assert [consumer.receive(TIMEOUT_S * 1000).schema_version()[-1:] for _ in range(3)] == ["\0", "\0", "\2"]

    assert admin.delete(f"{path}/schema", params={"force": True}).json() == {"version": 3}
    assert admin.get(f"{path}/schema/0").status_code == 404
    client.create_producer(topic, schema=avro).send({"a": 4})
    assert admin.get(f"{path}/schema").json()["version"] == 4


@pytest.mark.parametrize(
    ("path", "status", "part"),
    [
        ("/nothing", 404, "No such path: /nothing"),
        ("/lookup/v2/topic/persistent/public/default/a%2Fb", 400, "percent-escapes"),
        ("/lookup/v2/topic/other/public/default/a", 412, "not valid"),
        ("/lookup/v2/topic/persistent/public/default/a?listenerName=b", 503, "no advertised listener 'b'"),
        ("/admin/v2/namespaces/public/default/topics?mode=SOME", 400, "query.mode"),
        ("/admin/v2/namespaces/public/nowhere/topics", 404, "Namespace does not exist"),
        ("/admin/v2/schemas/public/default/x/schema/one", 400, "path.version"),
    ],
)
def test_errors_are_a_reason(broker: RunningBroker, path: str, status: int, part: str) -> None:
    found, why = reason(broker, path)
    assert found == status
    assert part in why


def test_a_body_that_is_cut_off(admin: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    answer = admin.post("/namespaces/public/default/retention", content='{"retentionTimeInMin', headers=headers)
    assert answer.status_code == 400
    assert "body is not JSON (Unterminated string starting at: character 1)" in answer.json()["reason"]


def test_health(broker: RunningBroker) -> None:
    for path in ("/status.html", "/admin/v2/brokers/health", "/admin/v2/brokers/ready"):
        assert ask(broker, path) == (200, "ok")
    assert re.fullmatch(r"\d+\.\d+\.\d+", ask(broker, "/admin/v2/brokers/version")[1])
    assert json_of(broker, "/admin/v2/clusters") == ["standalone"]
