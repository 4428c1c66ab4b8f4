"""Fixtures for commands that use brokers over HTTP."""

from tests.kit.few_cas import one_trusted_ca  # noqa: F401
