"""Security below the broker: the identity of clients, TLS contexts, advertised listeners, certificates for tests.

The broker shares it with the command line, which is a client of brokers. It may import `model`, the standard library
and libraries of cryptography, and nothing else of this project. Start reading at `principal` and `authentication`,
which asks the `providers`; then at `tls`, which turns files into contexts and checks when to read them again.
`listeners` decides which URLs a client gets. Authorization is `rules`, which decides about `operations` by `grants`.
"""
