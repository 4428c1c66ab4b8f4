"""Security below the broker: the identity of clients, TLS contexts, advertised listeners, certificates for tests.

The broker, and the command line as a client of brokers, share it. It may import `model`, the standard library and
libraries of cryptography, and of this project nothing else. Start reading at `principal` and `authentication`, which
asks the `providers`; then at `tls`: from files to contexts, and when they are read again. `listeners` decides which
URLs a client gets.
"""
