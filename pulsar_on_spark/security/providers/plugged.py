"""Providers in other packages, which settings name by their entry points in the group `pulsarpy.authentication`.

An entry point names a class:

| | |
|---|---|
| `method: str` | the authentication method of the clients |
| `from_settings(settings: Mapping[str, object])` | creates the provider from the broker's settings; may raise |
| `async authenticate(evidence: Evidence) -> Principal` | may raise `NotAuthenticatedError` |

The plug-in gets an HTTP request that names its method (`X-Pulsar-Auth-Method-Name`), as with Pulsar's
`authenticateHttpRequest`. It finds the credentials in `evidence.headers`, in the header that its clients use.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.evidence import Evidence, Failure, NotAuthenticatedError
from pulsar_on_spark.security.principal import Principal, is_role

log = logging.getLogger(__name__)

GROUP: Final = "pulsarpy.authentication"


def is_installed(name: str) -> bool:
    """Return True if an installed package has an entry point of this name."""
    return bool(entry_points(group=GROUP, name=name))


class PluggedProvider:
    """A provider in another package. Any exception that it raises refuses the client.

    Args:
        name: The name of the provider's entry point.
        settings: The broker's settings, by name.

    Raises:
        InvalidArgumentError: the provider cannot be loaded or created.
    """

    def __init__(self, name: str, settings: Mapping[str, object]) -> None:
        self.name = name
        (entry_point, *others) = entry_points(group=GROUP, name=name)
        if others:
            raise InvalidArgumentError(
                f"Several installed packages have an entry point {name!r} of {GROUP}: uninstall all but one."
            )
        try:
            self._plugged: Any = entry_point.load().from_settings(settings)
            self.method = self._plugged.method
            if not isinstance(self.method, str) or not self.method or not callable(self._plugged.authenticate):
                raise TypeError("it has no attribute method with a text, or no function authenticate")
        except Exception as error:
            raise InvalidArgumentError(
                f"The plug-in {name!r} of authentication_providers cannot be used ({type(error).__name__}: {error}): "
                "correct it, or leave it out."
            ) from error

    async def authenticate(self, evidence: Evidence) -> Principal:
        """Return the client's identity, as the plug-in finds it.

        Raises:
            NotAuthenticatedError: the plug-in refused the client, failed, or returned no role.
        """
        try:
            principal = await self._plugged.authenticate(evidence)
        except NotAuthenticatedError:
            raise
        except Exception as error:
            log.exception("The plug-in %r of authentication_providers failed.", self.name)
            raise NotAuthenticatedError(Failure.PLUGIN, f"the plug-in {self.name!r} failed") from error
        if not isinstance(principal, Principal) or not is_role(principal.role):
            raise NotAuthenticatedError(Failure.ROLE, f"the plug-in {self.name!r} returned no role")
        return principal
