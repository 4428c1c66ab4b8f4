from __future__ import annotations

import pytest

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.listeners import Listener, choose_listeners, parse_listeners

OWN = Listener("pulsar://own:6650", "", "http://own:8080", "")


def test_the_urls_of_each_listener_are_gathered() -> None:
    text = (
        "in:pulsar://a:6650, in:pulsar+ssl://a:6651,in:http://a:8080,in:https://a:8443,out:pulsar+ssl://[2001:db8::1]:1"
    )
    assert parse_listeners(text) == {
        "in": Listener("pulsar://a:6650", "pulsar+ssl://a:6651", "http://a:8080", "https://a:8443"),
        "out": Listener(service_url_tls="pulsar+ssl://[2001:db8::1]:1"),
    }
    assert parse_listeners("") == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("pulsar://a:6650", "which is not like"),
        ("in:kafka://a:9092", "which is not like"),
        ("in:pulsar://a", "which is not like"),
        ("in:pulsar://a:99999", "which is not like"),
        ("in:pulsar://a:1/path", "which is not like"),
        (":pulsar://a:1", "which is not like"),
        ("in:pulsar://a:1,in:pulsar://b:1", "gives listener 'in' two pulsar URLs"),
        ("in:pulsar://a:1,out:pulsar://a:1", "to the listeners 'in' and 'out'"),
    ],
)
def test_text_that_is_not_a_list_of_listeners_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        parse_listeners(text)


def test_without_listeners_only_clients_that_name_none_are_served() -> None:
    found = choose_listeners(OWN, {}, "")
    assert found.get("") == OWN
    assert found.get("any") is None
    assert set(found.hosts) == {"own"}


def test_clients_that_name_none_get_the_internal_listener() -> None:
    advertised = parse_listeners("first:pulsar://a:1,second:pulsar+ssl://b:2,second:https://b:3")
    first = Listener("pulsar://a:1", "", OWN.web_url, "")
    second = Listener("", "pulsar+ssl://b:2", "", "https://b:3")
    assert choose_listeners(OWN, advertised, "").get("") == first
    found = choose_listeners(OWN, advertised, "second")
    assert found.get("") == found.get("second") == second
    assert found.get("first") == first
    assert second.any_service_url == "pulsar+ssl://b:2"
    assert second.any_web_url == "https://b:3"
    assert set(found.hosts) == {"a", "b", "own"}


def test_an_internal_listener_that_is_not_advertised_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'third', which advertised_listeners does not have"):
        choose_listeners(OWN, parse_listeners("first:pulsar://a:1"), "third")


def test_a_listener_needs_a_url_for_pulsars_clients() -> None:
    with pytest.raises(InvalidArgumentError, match="'first' no pulsar://"):
        choose_listeners(OWN, parse_listeners("first:http://a:1"), "")
