"""A stateless proxy in front of brokers, for clients that cannot reach a broker directly; any number may run.

    client ──> proxy ──> any broker           lookups, topic lists, schemas
           ──> proxy ──> the topic's broker   producers and consumers

A connection's bytes are passed on unchanged, except the first command and the answers of lookups (`handshake`).
"""
