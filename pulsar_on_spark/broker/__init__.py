"""The broker: Pulsar's binary protocol over the topics of a root, so that official clients work unmodified.

The package may import `topic` and the packages below `topic`, and never Spark. It has these floors, from the top; a
floor imports only the floors below it:

    broker                     one run of a broker: start reading here
    connection, handlers, web  bytes and commands of clients; HTTP: lookup, admin API, metrics
    services                   the broker's parts together, its health, settings at run time, metrics
    background                 periodic work: expire messages, apply quotas, delete idle topics, repair
    observe                    topics' metrics and statistics for operators
    topics                     the topics that are loaded
    subscriptions              deliver entries to consumers
    producing                  from a SEND to its receipt: producers, deduplication, the way into the journal
    cursors, reading           durable acknowledgements; reading entries from memory, journals and segments
    dispatch, runtime          which consumer gets which entry (no IO); settings, views, commits, journals
"""
