"""The broker: Pulsar's binary protocol over the topics of a root, so that official clients work unmodified.

It may import `topic` and all below, never Spark. A shell of asyncio surrounds pure cores: `dispatch`, and producers and
deduplication in `producing`. Start reading at `broker.py`, one run of a broker. A message's way: `connection` takes its
bytes, `handlers` its command, `producing` puts it into the journal, `reading` keeps it at hand, `subscriptions` deliver
it, `cursors` remember that it was acknowledged. `topics` has what is loaded, `upkeep` what happens to it in time. `web`
and `stats` and `metrics` are for operators.
"""
