"""Security below the broker: the identity of clients, TLS contexts, advertised listeners, certificates for tests.

The broker shares it with the command line, which is a client of brokers. Of this project it imports only `model`. Start
reading at `principal` and `authentication`, which asks the `providers`. `tls` makes contexts of files, and notices when
the files have changed. `listeners` decides which URLs a client gets. Authorization is in `rules`, which decides about
`operations` by `grants`.
"""
