"""Plain frozen data: names, ids, positions, hashes of keys, quorums and the tree of errors.

No module does IO except `clock`, which reads the system's clock. The package imports none of the other packages, and no
libraries except numpy and Arrow (in `hashing` and `message_ids`). Start with `ids`, then `names`.
"""
