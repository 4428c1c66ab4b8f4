"""Write, read and follow a topic: attach, routing, task writers, slice readers, the tail and its consumers.

Start reading at `attach.py` (how a write becomes visible) and `reading.py`. `tail.py` reads the acknowledged entries of
journals that are not sealed yet.
"""
