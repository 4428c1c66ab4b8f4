"""Typed settings of a broker from defaults, a file, the environment and flags; later sources override earlier ones.

Names are Pulsar's in snake case and defaults are Pulsar's, unless a docstring says otherwise. A file is TOML; in the
environment a setting is `PULSARPY_` and its name in capitals.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.logs import LogFormat, LogLevel
from pulsar_on_spark.model.text import reason_of
from pulsar_on_spark.protocol.server import MAX_HANDSHAKE_FRAME_BYTES
from pulsar_on_spark.topic.catalog.bundles import MAX_BUNDLES
from pulsar_on_spark.topic.catalog.policies.policies import DELETION_LAG_MS

ENVIRONMENT_PREFIX: Final = "PULSARPY_"
_MIB = 1 << 20

Port = Annotated[
    Annotated[int, Field(ge=0, le=65_535)] | None, BeforeValidator(lambda given: None if given == "" else given)
]
"""A port; "" for none."""
# The bounds are those of policies, because most settings are defaults of policies.
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Some = Annotated[int, Field(ge=1, le=2**31 - 1)]
Limit = Annotated[int, Field(ge=-1, le=2**63 - 1)]
Bytes = Annotated[int, Field(ge=0, le=2**63 - 1)]
Names = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda given: [each.strip() for each in given.split(",")] if isinstance(given, str) else given),
]
"""A list; as text, its items are separated by commas."""


class BrokerSettings(BaseModel):
    """Settings of one broker; 0 means no limit where a limit may be 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    broker_service_port: Port = 6650
    """Port for clients; 0 takes a free port, and with "" there is only the port with TLS."""
    broker_service_port_tls: Port = None
    """Port for clients with TLS (see [security](security.md)), usually 6651."""
    web_service_port: Port = 8080
    """Port for HTTP; 0 takes a free port, and with "" there is only the port for HTTPS."""
    web_service_port_tls: Port = None
    """Port for HTTPS, usually 8443."""
    bind_address: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for all, with a warning. Pulsar's default is all. Without
    authentication every client may do everything, so clients on other hosts can connect only if this is set."""
    advertised_address: str = "localhost"
    """Host name that lookups return: clients must reach the broker by it."""
    advertised_listeners: str = ""
    """URLs that lookups return to clients of several networks, instead of URLs with `advertised_address`, such as
    `internal:pulsar://broker-1:6650,external:pulsar+ssl://broker.example.com:6651`. A client names its listener."""
    internal_listener_name: str = ""
    """Listener whose URLs clients get if they name no listener; by default the first of `advertised_listeners`."""
    tls_certificate_file_path: str = ""
    """PEM file of the broker's certificate, followed by the certificates of intermediate CAs."""
    tls_key_file_path: str = ""
    """PEM file of the broker's private key, which other users of the host must not be able to read."""
    tls_trust_certs_file_path: str = ""
    """PEM file of the CAs that issue client certificates; without it, clients are not asked for a certificate."""
    tls_require_trusted_client_cert_on_connect: bool = False
    """Refuse clients without a certificate from the CAs in `tls_trust_certs_file_path`, on the ports with TLS."""
    tls_allow_insecure_connection: bool = False
    """Ask no client for a certificate, even if `tls_trust_certs_file_path` is set."""
    tls_protocols: Names = ("TLSv1.3", "TLSv1.2")
    """Versions of TLS; older ones are refused."""
    tls_ciphers: Names = ()
    """Ciphers of TLS 1.2 by OpenSSL's names; by default OpenSSL's choice."""
    tls_cert_refresh_check_duration_sec: Annotated[float, Field(gt=0)] = 300
    """Interval of checks whether the TLS files were replaced."""
    broker_client_trust_certs_file_path: str = ""
    """PEM file of the CAs that issue other brokers' certificates, for requests to these brokers; by default the CAs of
    the system."""
    authentication_enabled: bool = False
    """Refuse clients that do not prove their role (see [security](security.md))."""
    authentication_providers: Names = ()
    """The ways to prove a role: `token`, `openid`, `basic` and `tls`, or the names of Pulsar's classes, or plug-ins, in
    the order in which they are tried."""
    strict_auth_method: bool = False
    """Refuse HTTP requests that do not name their authentication method (`X-Pulsar-Auth-Method-Name`)."""
    anonymous_user_role: str = ""
    """Role of clients without credentials; without it, they are refused."""
    proxy_roles: Names = ()
    """Roles of proxies, which speak for other clients."""
    authenticate_original_auth_data: bool = False
    """Check the credentials of clients that proxies forward; if false, the role that a proxy names is accepted."""
    authentication_refresh_check_seconds: Annotated[float, Field(gt=0)] = 60
    """Interval of checks for expired credentials of connected clients. A client is asked for new ones, and disconnected
    if it has sent none by the next check."""
    authorization_enabled: bool = False
    """Refuse operations that a client's role may not do (see [security](security.md#authorization)). Needs
    `authentication_enabled`."""
    super_user_roles: Names = ()
    """Roles that may do everything."""
    authorization_allow_wildcards_matching: bool = False
    """Let a `*` at the beginning or end of a role in a permission match any text."""
    authenticate_metrics_endpoint: bool = False
    """Authenticate requests for `/metrics`, too."""
    token_secret_key: SecretStr = SecretStr("")
    """Secret key that verifies tokens: `file:///PATH`, a path, `data:;base64,KEY` or base64."""
    token_public_key: str = ""
    """Public key that verifies tokens, RSA or EC, in DER or PEM, given like `token_secret_key`."""
    token_auth_claim: str = "sub"
    """Claim of a token that holds the role."""
    token_audience_claim: str = ""
    """Claim of a token that holds the audience; without it, the audience is not checked."""
    token_audience: str = ""
    """Audience of this broker: the claim `token_audience_claim` must be equal to it or contain it."""
    token_allowed_clock_skew_seconds: Annotated[int, Field(ge=0, le=3600)] = 0
    """Tolerated difference between the clocks of a token's issuer and of the broker."""
    open_id_allowed_token_issuers: Names = ()
    """OpenID issuers whose tokens the provider `openid` accepts, as the tokens name them (`iss`)."""
    open_id_allowed_audiences: Names = ()
    """Audiences of this broker: an OpenID token must be for one of them (`aud`)."""
    open_id_token_issuer_trust_certs_file_path: str = ""
    """PEM file of the CAs of issuers; by default the CAs of the system."""
    open_id_role_claim: str = "sub"
    """Claim of an OpenID token that holds the role."""
    open_id_accepted_time_leeway_seconds: Annotated[int, Field(ge=0, le=3600)] = 0
    """Tolerated difference between the clocks of an OpenID issuer and of the broker."""
    open_id_require_issuers_use_https: bool = True
    """Refuse issuers and keys whose URLs are not https."""
    basic_auth_conf: SecretStr = SecretStr("")
    """File of users and passwords (htpasswd, by bcrypt or apr1), given like `token_secret_key`."""
    audit_log_file: str = ""
    """File of the audit: a JSON object in each line, readable by the broker's user alone, opened again on SIGHUP.
    Without it, an authenticated broker logs the audit (logger `pulsar_on_spark.audit`). Not in Pulsar."""
    web_service_allowed_hosts: Names = ()
    """Host names that HTTP requests may have besides addresses, `localhost` and `advertised_address`; `*` for any.
    Separated by commas in the environment."""
    web_service_allowed_origins: Names = ()
    """Origins of web pages that may send requests, such as `https://console.example.com`, besides those of the
    broker's own address; `*` for any."""
    max_http_server_connections: Count = 2048
    """Maximum number of HTTP connections of all clients together. Above it the connections that have been idle longest
    are closed; if none is idle, requests get 503."""
    max_http_server_connections_per_ip: Count = 100
    """Maximum number of HTTP connections from one address, or from all IPv6 addresses of one /64 prefix. Above it the
    same happens as above `max_http_server_connections`. Not in Pulsar."""
    cluster_name: str = "standalone"
    """Name of the cluster, and prefix of the names that the broker gives to producers without a name."""

    root_file_mode: Literal["0600", "0660"] = "0600"
    """Permissions of the files of a root that this broker creates: for its user alone, or `0660` to share the root with
    a group (see operations). An existing root keeps its own, and another value here is refused. Not in Pulsar."""
    log_format: LogFormat = "text"
    """Log format on standard error, for all processes of the broker: text, or a JSON object in each line with `time`,
    `level`, `logger`, `message` and the subject: `topic`, `subscription`, `ledger`, `path`, `file`, `incarnation`,
    `connection`."""
    log_level: LogLevel = "INFO"
    """Lowest level that is logged."""
    expose_topic_level_metrics_in_prometheus: bool = True
    """Expose metrics for each topic and subscription; if false, sums by namespace."""
    expose_consumer_level_metrics_in_prometheus: bool = False
    """Expose metrics for each consumer, too, if they are exposed for each topic."""

    max_message_size: Annotated[int, Field(ge=1024, le=15 * _MIB)] = 5 * _MIB
    """Maximum number of bytes of an entry with its metadata; clients with chunking split larger messages. A journal
    accepts entries of up to 16 MiB."""
    keep_alive_interval_seconds: Annotated[float, Field(gt=0)] = 30
    """Silence after which the broker pings a connection. After the same time again without an answer, it closes the
    connection."""
    connection_handshake_timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 10
    """Time in which a connection must be CONNECTED, whatever it sends; one keep-alive interval in Pulsar."""
    connection_handshake_max_frame_bytes: Annotated[int, Field(ge=1024, le=5 * _MIB)] = MAX_HANDSHAKE_FRAME_BYTES
    """Maximum number of bytes of a frame, such as that of the client's credentials, before a connection is
    CONNECTED."""
    broker_max_connections: Count = 10_000
    """Maximum number of connections of all clients together. Pulsar's default is no limit; here, the journal could run
    out of file descriptors."""
    broker_max_connections_per_ip: Count = 0
    """Maximum number of connections from one address, or from all IPv6 addresses of one /64 prefix."""
    max_pending_publish_requests_per_connection: Some = 1000
    """Maximum number of unacknowledged entries of a connection: above it, the broker stops reading from the connection
    until half of them are acknowledged."""
    max_message_publish_buffer_size_mb: Some = 128
    """Maximum size of the unacknowledged entries of all connections: above it, the broker stops reading from clients
    with producers until half of it is acknowledged. Pulsar's default is half of the direct memory. Incomplete frames
    may take four times as much; above that, the connections that have been silent longest are closed."""

    allow_auto_topic_creation: bool = True
    """Create a missing topic when a client uses it."""
    allow_auto_topic_creation_type: Literal["non-partitioned", "partitioned"] = "non-partitioned"
    """Type of automatically created topics."""
    default_num_partitions: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of partitions of automatically created topics, if their type is partitioned."""
    max_num_partitions_per_partitioned_topic: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Maximum number of partitions of a topic; 0 for 10,000."""
    max_topics_per_namespace: Count = 0
    """Maximum number of topics in one namespace, for clients and the admin API; each partition counts. Spark's writes
    obey the namespace's policy; they obey this setting only if it was changed while a broker ran, which stores it in
    the metadata."""
    default_number_of_namespace_bundles: Annotated[int, Field(ge=1, le=MAX_BUNDLES)] = 4
    """Number of bundles of a namespace that is created without a number of its own. At most this number of brokers can
    serve the namespace's topics."""
    load_balancer_shedding_enabled: bool = True
    """Move bundles from a busy broker to a much less busy broker. If false, bundles move only by commands and isolation
    policies."""
    max_namespaces_per_tenant: Count = 0
    """Maximum number of namespaces in one tenant, checked by the admin API."""
    max_tenants: Count = 0
    """Maximum number of tenants, checked by the admin API."""
    allow_auto_subscription_creation: bool = True
    """Create a missing subscription when a consumer subscribes."""
    max_producers_per_topic: Count = 0
    """Maximum number of producers of one topic."""
    max_publish_rate_per_topic_in_messages: Count = 0
    """Messages a second of all producers of one topic: above it, the broker stops reading from them for a while."""
    max_publish_rate_per_topic_in_bytes: Bytes = 0
    """Bytes a second of all producers of one topic: above it, the broker stops reading from them for a while."""
    broker_publisher_throttling_max_message_rate: Count = 0
    """Messages a second of all producers of the broker, beside the rates of topics: above it, the broker stops reading
    from a producer's connection for a while."""
    broker_publisher_throttling_max_byte_rate: Bytes = 0
    """Bytes a second of all producers of the broker, beside the rates of topics: above it, the broker stops reading
    from a producer's connection for a while."""
    max_consumers_per_topic: Count = 0
    """Maximum number of consumers of one topic, all subscriptions together."""
    max_consumers_per_subscription: Count = 0
    """Maximum number of consumers of one subscription."""
    max_unacked_messages_per_consumer: Count = 50_000
    """Maximum number of unacknowledged messages of a Shared or Key_Shared consumer: above it, the consumer gets no more
    until half of them are acknowledged."""
    max_unacked_messages_per_subscription: Count = 200_000
    """Maximum number of unacknowledged messages of all Shared or Key_Shared consumers of a subscription: above it, they
    get no more until half of them are acknowledged."""
    auto_skip_non_recoverable_data: bool = False
    """Let subscriptions skip entries without a good copy; if false, they wait until a copy comes back."""
    dispatcher_max_read_batch_size: Some = 100
    """Maximum number of entries in one read for a subscription."""
    dispatcher_max_read_size_bytes: Some = 5 * 1024 * 1024
    """Maximum bytes of entries in one read for a subscription; a larger entry is read alone."""
    dispatcher_max_round_robin_batch_size: Some = 20
    """Messages that one Shared consumer gets before the next consumer gets any."""
    active_consumer_failover_delay_time_millis: Count = 1000
    """Pause of a Failover subscription before another consumer becomes active."""
    delayed_delivery_enabled: bool = True
    """Deliver a message at the time that its producer sets; if false, at once."""
    delayed_delivery_tick_time_millis: Some = 1000
    """Interval of checks for delayed messages that are due."""
    subscription_pattern_max_length: Some = 50
    """Maximum length of a regular expression by which a client watches topics; with a longer one, the client polls the
    list of topics instead."""
    max_subscriptions_per_topic: Count = 0
    """Maximum number of durable subscriptions of one topic."""

    default_retention_time_in_minutes: Limit = -1
    """Age up to which acknowledged entries are kept; -1 for no limit. Pulsar's default is 0: nothing is kept, whatever
    the size."""
    default_retention_size_in_mb: Limit = -1
    """Size up to which acknowledged entries are kept; -1 for no limit. 0 keeps nothing, whatever the age."""
    retention_check_interval_in_seconds: Some = 120
    """Interval at which topics are trimmed to their retention."""
    ttl_duration_default_in_seconds: Count = 0
    """Age above which entries are acknowledged in every subscription; 0 for never."""
    message_expiry_check_interval_in_minutes: Annotated[float, Field(gt=0)] = 5
    """Interval of checks for entries that are older than their topic's TTL."""
    backlog_quota_default_limit_bytes: Limit = -1
    """Maximum number of bytes in the largest backlog of a topic; -1 for no limit."""
    backlog_quota_default_limit_second: Limit = -1
    """Maximum age of the oldest entry in a topic's backlog; -1 for no limit."""
    backlog_quota_default_retention_policy: Literal[
        "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
    ] = "producer_request_hold"
    """Action when a backlog exceeds its limit of bytes or of age."""
    backlog_quota_check_interval_in_seconds: Annotated[float, Field(gt=0)] = 60
    """Interval of checks of backlogs."""
    subscription_expiration_time_minutes: Count = 0
    """Time after which a subscription without consumers is deleted; 0 for never."""
    subscription_expiry_check_interval_in_minutes: Annotated[float, Field(gt=0)] = 5
    """Interval of checks for unused subscriptions."""
    broker_delete_inactive_topics_enabled: bool = False
    """Delete unused topics. Pulsar's default is true. Here, a topic that Spark has written and no client has read yet
    would be deleted with its content."""
    broker_delete_inactive_topics_mode: Literal[
        "delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"
    ] = "delete_when_no_subscriptions"
    """Condition under which a topic without producers and consumers is unused."""
    broker_delete_inactive_topics_max_inactive_duration_seconds: Some = 60
    """Time without use before an unused topic is deleted."""
    broker_delete_inactive_topics_frequency_seconds: Annotated[float, Field(gt=0)] = 60
    """Interval of checks for unused topics."""
    managed_ledger_max_entries_per_ledger: Some = 50_000
    """Entries after which a topic continues in a new ledger."""
    managed_ledger_max_size_per_ledger_mbytes: Some = 2048
    """Size after which a topic continues in a new ledger."""
    managed_ledger_max_ledger_rollover_time_minutes: Annotated[float, Field(gt=0)] = 240
    """Age after which a topic continues in a new ledger."""
    managed_ledger_min_ledger_rollover_time_minutes: Annotated[float, Field(ge=0)] = 10
    """Age before which a topic stays in its ledger, whatever its entries and size."""
    managed_ledger_offload_driver: Annotated[str, Field(max_length=255)] = ""
    """Label of the cold storage paths that topics are offloaded to; any of them if it is empty. Without a path of this
    label, nothing is offloaded."""
    managed_ledger_offload_auto_trigger_size_threshold_bytes: Limit = -1
    """Size of a topic above which its oldest segments are offloaded; -1 for no limit."""
    managed_ledger_offload_threshold_in_seconds: Limit = -1
    """Age at which segments are offloaded; -1 for no limit."""
    managed_ledger_offload_deletion_lag_ms: Count = DELETION_LAG_MS
    """Time for which the other copies of an offloaded segment are kept."""

    broker_deduplication_enabled: bool = False
    """Deduplicate: an entry that a producer sends again is recognised by its sequence id and not stored again."""

    broker_deduplication_max_number_of_producers: Some = 10_000
    """Maximum number of disconnected producers whose names are remembered for each topic."""
    broker_deduplication_entries_interval: Some = 1000
    """Entries of a topic after which its deduplication state is saved."""
    broker_deduplication_snapshot_interval_seconds: Some = 120
    """Time after which a topic's deduplication state is saved, if entries were added."""
    broker_deduplication_producer_inactivity_timeout_minutes: Some = 360
    """Time for which the name of a disconnected producer is remembered."""

    encryption_require_on_producer: bool = False
    """Refuse producers that do not encrypt their messages, and messages that are not encrypted, on all topics, whatever
    the policy `encryptionRequired` of their namespaces."""

    schema_compatibility_strategy: Literal[
        "ALWAYS_INCOMPATIBLE",
        "ALWAYS_COMPATIBLE",
        "BACKWARD",
        "FORWARD",
        "FULL",
        "BACKWARD_TRANSITIVE",
        "FORWARD_TRANSITIVE",
        "FULL_TRANSITIVE",
    ] = "FULL"
    """Rule that a new schema of a topic must meet."""
    is_allow_auto_update_schema: bool = True
    """Register a producer's new schema if it is compatible; if false, producers must use a registered one."""
    is_schema_validation_enforced: bool = False
    """Refuse producers without a schema on a topic that has one."""

    managed_ledger_cache_size_mb: Some = 256
    """Memory for acknowledged entries, for consumers at the tail. Pulsar's default is a fifth of the direct memory."""
    broker_shutdown_timeout_ms: Some = 60_000
    """Time limit of a drain: clients are disconnected, published entries are acknowledged, cursors are saved."""

    sealing_lag_limit_mb: Some = 4096
    """Size of the unsealed journal above which producers are held back."""
    seal_within_s: Annotated[float, Field(gt=0)] | None = None
    """Time after which acknowledged entries are in segments; by default 60 s, and 10 s for a root on an object store
    with the journal on disks of the broker's host, where Spark on other hosts reads segments only."""
    journal_object_interval_ms: Some = 100
    """For a journal on an object store: interval at which it writes objects while earlier ones are being written. A
    shorter interval costs more requests; a longer one delays acknowledgements."""
    journal_object_max_mb: Annotated[int, Field(ge=1, le=16)] = 4
    """Size of waiting entries at which an object is written before the interval is over."""
    journal_objects_in_flight: Annotated[int, Field(ge=1, le=32)] = 8
    """Maximum number of a journal's objects that are being written at the same time, for each storage path."""
    broker_service_compaction_threshold_in_bytes: Bytes = 0
    """Uncompacted key and value bytes above which a topic is compacted; 0 for never."""
    broker_service_compaction_monitor_interval_in_seconds: Annotated[float, Field(gt=0)] = 60
    """Interval of checks for topics to compact."""
    topic_compaction_retain_null_key: bool = False
    """Let compaction keep messages without a key; if false, it drops them."""
    maintain_interval_s: Annotated[float, Field(gt=0)] = 600
    """Interval of housekeeping (`pulsarpy maintain`) by the broker."""
    lost_path_recovery_delay_s: Annotated[float, Field(ge=0)] = 600
    """Time for which a storage path may be unreachable before housekeeping restores its copies on other paths."""


def load(
    file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[str, object] | None = None,
) -> BrokerSettings:
    """Load the settings from all sources.

    Args:
        file: A TOML file; None for none.
        environment: Environment variables; those that are not settings are ignored.
        flags: Settings of the command line by name, where the value None counts as not set; None for no flags.

    Raises:
        InvalidArgumentError: the file cannot be read, or a setting is unknown or invalid.
    """
    given: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if file is not None:
        in_file = _read(file)
        given |= in_file
        sources |= dict.fromkeys(in_file, f"in {file}")
    for name in BrokerSettings.model_fields:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environment:
            given[name], sources[name] = environment[variable], f"in the environment variable {variable}"
    for name, value in (flags or {}).items():
        if value is not None:
            given[name], sources[name] = value, "on the command line"
    try:
        return BrokerSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            if "key_store" in name:
                raise InvalidArgumentError(
                    f"Setting {name!r} {sources[name]} is about Java's key stores, which are not supported: convert "
                    "certificate and key to PEM files with `openssl pkcs12`, and set tls_certificate_file_path and "
                    "tls_key_file_path."
                ) from error
            if name == "token_public_alg":
                raise InvalidArgumentError(
                    f"Setting {name!r} {sources[name]} is not needed, because the key itself shows its algorithm: "
                    "leave it out."
                ) from error
            close = difflib.get_close_matches(name, BrokerSettings.model_fields, n=1)
            remedy = f"did you mean {close[0]}?" if close else "see docs/configuration.md for all settings."
            raise InvalidArgumentError(f"Setting {name!r} {sources[name]} is unknown: {remedy}") from error
        reason = reason_of(first["msg"])
        raise InvalidArgumentError(
            f"Setting {name!r} {sources.get(name, '')} is invalid ({reason}): correct it, or leave it out."
        ) from error


def remove_secrets(environment: MutableMapping[str, str]) -> None:
    """Remove the settings that are secrets from an environment, so that child processes do not inherit them."""
    for name, field in BrokerSettings.model_fields.items():
        if field.annotation is SecretStr:
            environment.pop(ENVIRONMENT_PREFIX + name.upper(), None)


def _read(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(
            f"The settings file {file} cannot be read ({error.strerror}): give another file."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"The settings file {file} is not TOML ({error}): correct it.") from error
