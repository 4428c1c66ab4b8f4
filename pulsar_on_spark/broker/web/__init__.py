"""The broker's HTTP face, on its event loop: lookups and what else clients ask there, schemas, health and metrics.

`server.py` runs it; `app.py` puts the routes together and says how errors look. Paths, bodies and status codes are
those of Pulsar's admin REST v2. Handlers only translate: what is done lies in the broker's parts (`Services`).
"""
