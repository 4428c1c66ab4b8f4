"""`pulsarpy tenants`, `pulsarpy namespaces`, and `pulsarpy policies` for namespaces and topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, listed
from pulsar_on_spark.cli.broker_target import BrokerTarget
from pulsar_on_spark.cli.targets import UrlOption, open_target
from pulsar_on_spark.cli.units import duration_s, size_bytes
from pulsar_on_spark.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pulsar_on_spark.cli.root_target import RootTarget

tenants_app = typer.Typer(help="List, create and delete tenants.", no_args_is_help=True)
namespaces_app = typer.Typer(help="List, create and delete namespaces.", no_args_is_help=True)
policies_app = typer.Typer(help="Show and set policies of namespaces and topics.", no_args_is_help=True)

Force = Annotated[bool, typer.Option("--force", help="Delete its contents, too.")]
AdminRoles = Annotated[
    list[str] | None,
    typer.Option("--admin-roles", "--admin-role", "-r", help="Administrators' roles, separated by commas."),
]
Of = Annotated[str, typer.Argument(help="A namespace (tenant/namespace) or a topic.")]
Field = Annotated[str, typer.Argument(help="The policy, such as retention or message_ttl.")]

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what a new retention would delete in a root, and change nothing.")
]


@tenants_app.command("list")
def list_tenants(
    root: RootArgument = None, root_option: RootOption = None, url: UrlOption = None, as_json: AsJson = False
) -> None:
    """List tenants."""
    names = open_target(root, root_option, url).tenants()
    if as_json:
        output.print_json(names)
    else:
        output.table("Tenants", ("name",), ([name] for name in names))


@tenants_app.command("create")
def create_tenant(
    tenant: str,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    admin_roles: AdminRoles = None,
    as_json: AsJson = False,
) -> None:
    """Create a tenant."""
    open_target(root, root_option, url).create_tenant(tenant, listed(admin_roles or ()))
    output.done(f"Created tenant {tenant}.", as_json, tenant=tenant)


@tenants_app.command("update")
def update_tenant(
    tenant: str,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    admin_roles: AdminRoles = None,
    as_json: AsJson = False,
) -> None:
    """Set the roles of a tenant's administrators, which replace the former roles."""
    if admin_roles is None:
        raise InvalidArgumentError('Option --admin-roles is missing: give it, or --admin-roles "" for no roles.')
    roles = listed(admin_roles)
    open_target(root, root_option, url).update_tenant(tenant, roles)
    output.done(f"Updated tenant {tenant}.", as_json, tenant=tenant, admin_roles=roles)


@tenants_app.command("delete")
def delete_tenant(
    tenant: str,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Delete a tenant."""
    open_target(root, root_option, url).delete_tenant(tenant, force=force)
    output.done(f"Deleted tenant {tenant}.", as_json, tenant=tenant)


@namespaces_app.command("list")
def list_namespaces(
    tenant: str,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """List the namespaces of a tenant."""
    names = open_target(root, root_option, url).namespaces(tenant)
    if as_json:
        output.print_json(names)
    else:
        output.table("Namespaces", ("name",), ([name] for name in names))


@namespaces_app.command("create")
def create_namespace(
    namespace: str,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Create a namespace, `tenant/namespace`, of an existing tenant."""
    open_target(root, root_option, url).create_namespace(namespace)
    output.done(f"Created namespace {namespace}.", as_json, namespace=namespace)


@namespaces_app.command("delete")
def delete_namespace(
    namespace: str,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Delete a namespace."""
    open_target(root, root_option, url).delete_namespace(namespace, force=force)
    output.done(f"Deleted namespace {namespace}.", as_json, namespace=namespace)


@policies_app.command("show")
def show(
    of: Of,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the policies that are set on a namespace or a topic."""
    policies = open_target(root, root_option, url).policies(of)
    if as_json:
        output.print_json(policies)
    else:
        output.table(
            f"Policies of {of}", ("policy", "value"), ([name, json.dumps(policies[name])] for name in policies)
        )


@policies_app.command("set")
def set_(
    of: Of,
    field: Field,
    value: Annotated[str, typer.Argument(help="JSON with Pulsar's names; quotes around a single word are optional.")],
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Set a policy of a namespace or a topic."""
    given = _json(value)
    if given is None:
        raise InvalidArgumentError(f"Policy {field!r} cannot be set to null: use `pulsarpy policies unset`.")
    if field == "retention" and not isinstance(given, dict):
        raise InvalidArgumentError(
            f"Retention {value!r} is not a JSON object: use `pulsarpy policies set-retention` with --time and --size."
        )
    _change(open_target(root, root_option, url), of, field, given, dry_run=dry_run, as_json=as_json)


@policies_app.command("set-retention")
def set_retention(
    of: Of,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    size: Annotated[
        str | None,
        typer.Option("--size", "-s", help="Size to keep of each topic: 512M, 10G, 2T; -1 (the default) for no limit."),
    ] = None,
    age: Annotated[
        str | None,
        typer.Option("--time", "-t", help="Time to keep messages: 90m, 24h, 7d; -1 (the default) for no limit."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Set the time and the size of acknowledged messages to keep; messages beyond either limit may be deleted."""
    if size is None and age is None:
        raise InvalidArgumentError("Neither --size nor --time is given: give one of them, or both.")
    retention = {"retentionTimeInMinutes": _minutes(age or "-1"), "retentionSizeInMB": _megabytes(size or "-1")}
    _change(open_target(root, root_option, url), of, "retention", retention, dry_run=dry_run, as_json=as_json)


@policies_app.command("unset")
def unset(
    of: Of,
    field: Field,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove a policy, so that the policy of the namespace or the broker applies."""
    _change(open_target(root, root_option, url), of, field, None, dry_run=dry_run, as_json=as_json)


def _change(
    target: RootTarget | BrokerTarget, of: str, field: str, value: Any, *, dry_run: bool, as_json: bool
) -> None:
    """Set a policy, or remove it if `value` is None. On a root, show the messages that a new retention deletes."""
    trimmed = None
    if field == "retention" and not isinstance(target, BrokerTarget):
        trimmed = target.retention_preview(of, value)
    elif dry_run:
        raise InvalidArgumentError(
            "Option --dry-run is only for the retention policy on a root: give a root, or leave the option out."
        )
    if not dry_run:
        target.set_policy(of, field, value)
    fields: dict[str, object] = {"of": of, "policy": field} | ({} if value is None else {"value": value})
    text = f"{'Unset' if value is None else 'Set'} {field} of {of}."
    if dry_run:
        fields["dry_run"] = True
        text = f"The retention of {of} is unchanged."
    if trimmed is not None and (dry_run or trimmed.messages):
        fields["deletes"] = trimmed
        text += (
            f" With the new one, housekeeping deletes {trimmed.messages:,} messages ({output.size(trimmed.bytes)}) of "
            f"{trimmed.topics:,} topics at once."
        )
    output.done(text, as_json, **fields)


def _minutes(text: str) -> int:
    if text in ("-1", "0"):
        return int(text)
    minutes = int(duration_s(text, "Option --time") // 60)
    if not minutes:
        raise InvalidArgumentError(f"Option --time is {text!r}, less than a minute: give 1m or more, 0, or -1.")
    return minutes


def _megabytes(text: str) -> int:
    if text in ("-1", "0"):
        return int(text)
    megabytes = size_bytes(text, "Option --size") >> 20
    if not megabytes:
        raise InvalidArgumentError(f"Option --size is {text!r}, less than 1M: give 1M or more, 0, or -1.")
    return megabytes


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
