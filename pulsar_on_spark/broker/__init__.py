"""The broker: Pulsar's binary protocol over the topics of a root, so that official clients work unmodified.

It may import `topic` and all below, never Spark. A shell of asyncio surrounds pure cores (`dispatch`, and in `producing`
producers and deduplication). Start reading at `broker.py` (one run of a broker). A message's way: `connection` takes its
bytes, `handlers` its command, `producing` puts it into the journal, `reading` keeps it at hand, `subscriptions` delivers
it, `cursors` remember its acknowledgement. `topics` has what is loaded, `upkeep` what happens to it in time; `web`,
`stats` and `metrics` are for operators.
"""
