"""Names of `pulsar-admin`'s commands: those with the same arguments here are run, others fail with a hint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

ALIASES: Final[Mapping[str, str]] = {
    "namespaces grant-permission": "permissions grant",
    "namespaces grant-subscription-permission": "permissions grant-subscription",
    "namespaces permissions": "permissions list",
    "namespaces policies": "policies show",
    "namespaces revoke-permission": "permissions revoke",
    "namespaces revoke-subscription-permission": "permissions revoke-subscription",
    "namespaces set-retention": "policies set-retention",
    "namespaces subscription-permission": "permissions list-subscriptions",
    "namespaces topics": "topics list",
    "schemas get": "schemas list",
    "topics compact": "compact",
    "topics delete-partitioned-topic": "topics delete",
    "topics grant-permission": "permissions grant",
    "topics grant-permissions": "permissions grant",
    "topics offload": "offload",
    "topics offload-status": "offload-status",
    "topics partitioned-stats": "topics stats",
    "topics partitioned-stats-internal": "topics internal-stats",
    "topics permissions": "permissions list",
    "topics revoke-permission": "permissions revoke",
    "topics revoke-permissions": "permissions revoke",
    "topics set-retention": "policies set-retention",
    "topics stats-internal": "topics internal-stats",
    "topics trim-topic": "topics trim",
}
"""Commands of `pulsar-admin` that have the same arguments here, each with the command that is run."""

_OFFLOAD: Final = "policies set OF offload_policies JSON"
HINTS: Final[Mapping[str, str]] = {
    "bookies": "storage list",
    "broker-stats": "status --url URL",
    "brokers healthcheck": "status --url URL",
    "brokers leader-broker": "brokers list",
    "brokers namespaces": "namespaces bundles NAMESPACE",
    "clusters": "status",
    "namespaces clear-backlog": "subscriptions clear TOPIC SUBSCRIPTION",
    "namespaces set-offload-deletion-lag": _OFFLOAD,
    "namespaces set-offload-policies": _OFFLOAD,
    "namespaces set-offload-threshold": _OFFLOAD,
    "non-persistent": "topics",
    "persistent": "topics",
    "schemas upload": "schemas register TOPIC FILE",
    "topicPolicies": "policies",
    "topics clear-backlog": "subscriptions clear TOPIC SUBSCRIPTION",
    "topics compaction-status": "topics stats TOPIC",
    "topics create-partitioned-topic": "topics create TOPIC --partitions N",
    "topics create-subscription": "subscriptions create TOPIC SUBSCRIPTION",
    "topics examine-messages": "read TOPIC",
    "topics expire-messages": "subscriptions expire TOPIC SUBSCRIPTION SECONDS",
    "topics get-message-by-id": "read TOPIC",
    "topics get-partitioned-topic-metadata": "topics list NAMESPACE",
    "topics last-message-id": "read TOPIC --last -n 1",
    "topics list-partitioned-topics": "topics list NAMESPACE",
    "topics partitioned-terminate": "topics terminate TOPIC",
    "topics peek-messages": "peek TOPIC SUBSCRIPTION -n N",
    "topics reset-cursor": "seek TOPIC SUBSCRIPTION 1h",
    "topics set-offload-policies": _OFFLOAD,
    "topics skip": "subscriptions skip TOPIC SUBSCRIPTION N",
    "topics subscriptions": "topics stats TOPIC",
    "topics unsubscribe": "subscriptions delete TOPIC SUBSCRIPTION",
    "topics update-partitioned-topic": "topics add-partitions TOPIC N",
}
"""Commands of `pulsar-admin` that have other arguments here, each with the command to show as a hint."""

_POLICY: Final = re.compile(r"(?:topics|namespaces) (get|set|remove)-([a-z-]+)")
_POLICY_VERBS: Final = {"get": "show OF", "set": "set OF {policy} VALUE", "remove": "unset OF {policy}"}


def hint(name: str) -> str | None:
    """Return the command of `pulsarpy` to show for a command of `pulsar-admin`; None if there is none."""
    if name in HINTS:
        return HINTS[name]
    of_policy = _POLICY.fullmatch(name)
    if of_policy is None:
        return None
    return "policies " + _POLICY_VERBS[of_policy[1]].format(policy=of_policy[2].replace("-", "_"))


class PulsarGroup(TyperGroup):
    """A group of commands that also accepts the names of `pulsar-admin`'s commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command with the typed name, here or in `pulsar-admin`; fail with a hint for other arguments."""
        root = ctx.find_root()
        typed = args[0] if ctx is root else f"{ctx.info_name} {args[0]}"
        if self.get_command(ctx, args[0]) is None:
            if typed in ALIASES:
                command: Any = root.command
                for word in ALIASES[typed].split():
                    command = command.get_command(ctx, word)
                return args[0], command, args[1:]
            ours = hint(typed)
            if ours is not None:
                ctx.fail(f"No such command {args[0]!r}: pulsar-admin's `{typed}` is `pulsarpy {ours}` here.")
        return super().resolve_command(ctx, args)
