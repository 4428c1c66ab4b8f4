"""The audit log that a broker's settings choose."""

from __future__ import annotations

from pathlib import Path

from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.security.audit_log import Audit, AuditFile, AuditLogger, NoAudit


def audit_of(settings: BrokerSettings) -> Audit:
    """Return the audit of a broker: in a file if one is set, else in the log if it authenticates clients, else none.

    Raises:
        InvalidArgumentError: the file cannot be written.
    """
    if settings.audit_log_file:
        return Audit(AuditFile(Path(settings.audit_log_file)))
    return Audit(AuditLogger() if settings.authentication_enabled else NoAudit())
