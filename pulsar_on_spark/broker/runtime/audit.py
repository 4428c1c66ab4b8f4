"""The audit log that a broker's settings choose."""

from __future__ import annotations

from pathlib import Path

from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.security.audit_log import Audit, AuditFile, AuditLogger, NoAudit


def audit_of(settings: BrokerSettings) -> Audit:
    """Create a broker's audit: in `audit_log_file` if it is set, else in the log if authentication is on, else none.

    Raises:
        InvalidArgumentError: the audit file cannot be written.
    """
    if settings.audit_log_file:
        return Audit(AuditFile(Path(settings.audit_log_file)))
    return Audit(AuditLogger() if settings.authentication_enabled else NoAudit())
