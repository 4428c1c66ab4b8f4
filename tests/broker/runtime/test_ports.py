"""The ports that a broker binds, and the URLs and hints that follow from them."""

from __future__ import annotations

import pytest

from pulsar_on_spark.broker.runtime.ports import PortNumbers, bound_ports, check_reach, listeners_of
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.listeners import Listener

FREE = BrokerSettings(broker_service_port=0, web_service_port=0)


def with_settings(**changes: object) -> BrokerSettings:
    return BrokerSettings.model_validate({"broker_service_port": 0, "web_service_port": 0, **changes})


def test_each_port_that_is_set_has_a_url() -> None:
    with bound_ports(with_settings(web_service_port_tls=0)) as ports:
        binary, binary_tls, web, web_tls = ports.numbers
        assert binary_tls is None
        assert listeners_of(FREE, ports).default == Listener(
            f"pulsar://localhost:{binary}", "", f"http://localhost:{web}", f"https://localhost:{web_tls}"
        )
        assert listeners_of(with_settings(advertised_address="2001:db8::1"), ports).default.web_url == (
            f"http://[2001:db8::1]:{web}"
        )
        assert ports.numbers.use_web == f"the port without TLS is {web}"
        assert ports.numbers.use_web_tls == f"the port with TLS is {web_tls}"
        assert ports.numbers.use_binary_tls == "there is no port with TLS, broker_service_port_tls adds one"
    assert PortNumbers(None, 1, None, 2).use_binary == "there is no port without TLS"


def test_urls_for_http_have_the_host_of_the_internal_listener() -> None:
    settings = with_settings(
        advertised_listeners="in:pulsar://a:1,out:pulsar+ssl://b:2", internal_listener_name="out", bind_address="::1"
    )
    with bound_ports(settings) as ports:
        found = listeners_of(settings, ports)
        assert found.default == Listener("", "pulsar+ssl://b:2", f"http://b:{ports.numbers.web}", "")


@pytest.mark.parametrize("kind", ["broker", "web"])
def test_a_broker_without_any_port_of_a_kind_is_refused(kind: str) -> None:
    name = f"{kind}_service_port"
    with (
        pytest.raises(InvalidArgumentError, match=f"Neither {name} nor {name}_tls is set"),
        bound_ports(with_settings(**{name: ""})),
    ):
        pass


def test_a_port_in_use_is_named_with_its_setting() -> None:
    with bound_ports(FREE) as ports:
        assert ports.web is not None
        ports.web.listen()
        again = with_settings(web_service_port_tls=ports.numbers.web)
        with pytest.raises(InvalidArgumentError, match="set another web_service_port_tls"), bound_ports(again):
            pass


def test_an_address_beside_listeners_is_refused() -> None:
    settings = with_settings(advertised_address="a", advertised_listeners="in:pulsar://a:1")
    with (
        bound_ports(settings) as ports,
        pytest.raises(InvalidArgumentError, match="advertised_address and advertised_listeners are both set"),
    ):
        listeners_of(settings, ports)


def test_listeners_that_other_hosts_shall_reach_need_a_bind_address() -> None:
    listeners = "in:pulsar://localhost:1,out:pulsar+ssl://broker.example.com:2"
    with pytest.raises(InvalidArgumentError, match=r"advertised_listeners is 'broker\.example\.com', but other hosts"):
        check_reach(with_settings(advertised_listeners=listeners))
    check_reach(with_settings(advertised_listeners="in:pulsar://localhost:1"))


@pytest.mark.parametrize(
    ("changes", "warns"), [({}, True), ({"broker_service_port": "", "web_service_port": ""}, False)]
)
def test_a_broker_that_asks_every_client_for_a_certificate_does_not_warn(
    changes: dict[str, object], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tls = {"broker_service_port_tls": 0, "web_service_port_tls": 0, "tls_require_trusted_client_cert_on_connect": True}
    check_reach(with_settings(bind_address="0.0.0.0", **tls, **changes))
    assert bool(caplog.records) is warns


def test_a_port_is_for_one_service() -> None:
    """Two sockets can be bound to it, and one of them would get all connections."""
    settings = with_settings(broker_service_port=6650, web_service_port=6650)
    message = "Port 6650 is given as --broker-port and as --web-port: give two ports."
    with pytest.raises(InvalidArgumentError, match=message), bound_ports(settings):
        pass
