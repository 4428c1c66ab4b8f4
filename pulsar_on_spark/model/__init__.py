"""Plain frozen data: names, ids, positions, hashes of keys, quorums and the tree of errors.

No module does IO except `clock`, which reads the system's clock. The package imports no other package of this project,
and no libraries except numpy and Arrow (in `hashing` and `message_ids`). Start reading at `ids`, then `names`.
"""
