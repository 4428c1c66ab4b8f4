"""The broker: Pulsar's binary protocol over the topics of a root, so that official clients work unmodified.

It may import `topic` and all below, never Spark. A shell of asyncio surrounds pure cores (dispatch, producers, dedup,
schemas). Start reading at `broker.py` (one run of a broker), then `connection.py` and `topic.py` (a message's way).
"""
