"""The broker's HTTP API, on its event loop: lookups, the admin API, the schema registry, health and metrics.

Start at `app.py`, which assembles the routes and formats errors; `server.py` runs the application. Paths, bodies and
status codes are those of Pulsar's admin REST v2. Handlers only translate; the broker's parts (`Services`) do the work.
"""
