"""`pulsarpy brokers`, and the commands that list, unload and split the bundles of namespaces."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson
from pulsar_on_spark.cli.http_admin import HttpAdmin, namespace_path
from pulsar_on_spark.cli.targets import UrlOption, open_broker
from pulsar_on_spark.cli.tenants import namespaces_app
from pulsar_on_spark.model.names import check_namespace

brokers_app = typer.Typer(help="List the brokers of a root.", no_args_is_help=True)

Namespace = Annotated[str, typer.Argument(help="The namespace, `tenant/namespace`.")]
_RANGE: Final = "such as 0x00000000_0x40000000 (`pulsarpy namespaces bundles` lists them)"


@brokers_app.command("list")
def list_brokers(url: UrlOption = None, as_json: AsJson = False) -> None:
    """List the brokers and their numbers of bundles, and show the leader, which does the work for the whole root."""
    admin = open_broker(url)
    leader = admin.get("brokers", "leaderBroker")["brokerId"]
    owners = _owners(admin)
    brokers = [
        {"broker": broker, "bundles": list(owners.values()).count(broker), "leader": broker == leader}
        for broker in admin.get("brokers")
    ]
    if as_json:
        output.print_json(brokers)
    else:
        rows = ([each["broker"], str(each["bundles"]), "yes" if each["leader"] else ""] for each in brokers)
        output.table("Brokers", ("broker", "bundles", "leader"), rows)


@namespaces_app.command("bundles")
def bundles(namespace: Namespace, url: UrlOption = None, as_json: AsJson = False) -> None:
    """List the bundles of a namespace and their brokers. A bundle whose topics are not in use may have no broker."""
    admin = open_broker(url)
    boundaries = admin.get(*namespace_path(namespace), "bundles")["boundaries"]
    ranges = [f"{lower}_{upper}" for lower, upper in pairwise(boundaries)]
    owners = _owners(admin)
    found = [{"bundle": each, "broker": owners.get(f"{check_namespace(namespace)}/{each}")} for each in ranges]
    if as_json:
        output.print_json(found)
    else:
        rows = ([each["bundle"], each["broker"] or ""] for each in found)
        output.table(f"Bundles of {namespace}", ("bundle", "broker"), rows)


@namespaces_app.command("unload")
def unload(
    namespace: Namespace,
    bundle: Annotated[str | None, typer.Option("--bundle", "-b", help=f"One bundle only, {_RANGE}.")] = None,
    destination: Annotated[
        str | None, typer.Option("--destination-broker", "-d", help="The broker that gets the bundle.")
    ] = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Unload the topics of a namespace or of one bundle from their brokers; clients then look the topics up again."""
    where = namespace_path(namespace) if bundle is None else (*namespace_path(namespace), bundle)
    params = {} if destination is None else {"destinationBroker": destination}
    open_broker(url).change("PUT", *where, "unload", **params)
    output.done(f"Unloaded {'/'.join(where[1:])}.", as_json, namespace=namespace, bundle=bundle)


@namespaces_app.command("split-bundle")
def split_bundle(
    namespace: Namespace,
    bundle: Annotated[str, typer.Option("--bundle", "-b", help=f"The bundle, {_RANGE}.")],
    algorithm: Annotated[
        str,
        typer.Option(
            "--split-algorithm-name",
            "-san",
            help="range_equally_divide, or topic_count_equally_divide for equal halves.",
        ),
    ] = "range_equally_divide",
    is_unloaded: Annotated[
        bool, typer.Option("--unload", "-u", help="Unload the parts, so that brokers share them.")
    ] = False,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Split a bundle into two, so that two brokers can serve its topics."""
    where = (*namespace_path(namespace), bundle)
    open_broker(url).change("PUT", *where, "split", splitAlgorithmName=algorithm, unload=is_unloaded)
    output.done(f"Split {'/'.join(where[1:])}.", as_json, namespace=namespace, bundle=bundle)


def _owners(admin: HttpAdmin) -> dict[str, str]:
    """Return the broker that owns each bundle, by the bundle's name `tenant/namespace/range`."""
    (cluster, *_) = admin.get("clusters")
    return {
        bundle: broker
        for broker in admin.get("brokers")
        for bundle in admin.get("brokers", cluster, broker, "ownedNamespaces")
    }
