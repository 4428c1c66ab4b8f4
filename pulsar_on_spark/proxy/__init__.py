"""A proxy in front of brokers, for clients that reach no broker: any number of them, without state.

    client ──> proxy ──> any broker           lookups, topic lists, schemas
           ──> proxy ──> the topic's broker   producers and consumers

A connection's bytes are passed on as they are, but for the first command and the answers of lookups (`handshake`).
"""
