"""`pulsarpy permissions`: the rights of roles on namespaces, topics and subscriptions."""

from __future__ import annotations

from typing import Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, listed
from pulsar_on_spark.cli.targets import UrlOption, open_target

permissions_app = typer.Typer(
    help="Grant, revoke and list permissions, which a broker with authorization enforces.", no_args_is_help=True
)

Of = Annotated[str, typer.Argument(help="A namespace (tenant/namespace) or a topic.")]
Namespace = Annotated[str, typer.Argument(help="A namespace (tenant/namespace).")]
Subscription = Annotated[str, typer.Option("--subscription", help="The name of the subscriptions.")]
Role = Annotated[str, typer.Option("--role", help="The role of clients.")]
Actions = Annotated[
    list[str],
    typer.Option(
        "--actions",
        help="produce and consume, separated by a comma; Pulsar's functions, sources, sinks and packages have no "
        "effect here.",
    ),
]


@permissions_app.command("grant")
def grant(
    of: Of,
    role: Role,
    actions: Actions,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Give a role actions on a namespace or a topic. They replace the role's former actions there."""
    given = listed(actions)
    open_target(root, root_option, url).grant_permission(of, role, given)
    output.done(f"Granted {', '.join(given)} on {of} to {role}.", as_json, of=of, role=role, actions=given)


@permissions_app.command("revoke")
def revoke(
    of: Of,
    role: Role,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Take all actions on a namespace or a topic from a role. Clients that are connected lose them, too."""
    open_target(root, root_option, url).revoke_permission(of, role)
    output.done(f"Revoked all actions on {of} from {role}.", as_json, of=of, role=role)


@permissions_app.command("list")
def list_(
    of: Of,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """List the actions of roles on a namespace or a topic. Actions on a namespace hold for its topics, too."""
    granted = open_target(root, root_option, url).permissions(of)
    if as_json:
        output.print_json(granted)
    else:
        rows = ([role, ", ".join(actions)] for role, actions in sorted(granted.items()))
        output.table(f"Permissions of {of}", ("role", "actions"), rows)


@permissions_app.command("grant-subscription")
def grant_subscription(
    namespace: Namespace,
    subscription: Subscription,
    roles: Annotated[list[str], typer.Option("--roles", help="The only roles that may use it, separated by commas.")],
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Let only some roles use the subscriptions with a name. These roles also need the permission to consume."""
    given = listed(roles)
    open_target(root, root_option, url).grant_subscription_permission(namespace, subscription, given)
    text = f"Granted subscription {subscription!r} of {namespace} to {', '.join(given)} alone."
    output.done(text, as_json, namespace=namespace, subscription=subscription, roles=given)


@permissions_app.command("revoke-subscription")
def revoke_subscription(
    namespace: Namespace,
    subscription: Subscription,
    role: Role,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Stop a role from using the subscriptions with a name. Without any roles, all roles may use them."""
    open_target(root, root_option, url).revoke_subscription_permission(namespace, subscription, role)
    text = f"Revoked subscription {subscription!r} of {namespace} from {role}."
    output.done(text, as_json, namespace=namespace, subscription=subscription, role=role)


@permissions_app.command("list-subscriptions")
def list_subscriptions(
    namespace: Namespace,
    root: RootArgument = None,
    root_option: RootOption = None,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """List the subscriptions of a namespace that only some roles may use."""
    granted = open_target(root, root_option, url).subscription_permissions(namespace)
    if as_json:
        output.print_json(granted)
    else:
        rows = ([name, ", ".join(roles)] for name, roles in sorted(granted.items()))
        output.table(f"Subscriptions of {namespace}", ("subscription", "roles"), rows)
