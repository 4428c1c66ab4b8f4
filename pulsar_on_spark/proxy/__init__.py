"""A stateless proxy in front of brokers, for clients that cannot reach a broker directly; any number of them may run.

    client ──> proxy ──> any broker           lookups, topic lists, schemas
           ──> proxy ──> the topic's broker   producers and consumers

The proxy passes on the bytes of a connection unchanged, except the first command and the answers to lookups
(`handshake`).
"""
