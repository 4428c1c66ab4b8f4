"""The broker: Pulsar's binary protocol over the topics of a root, so that official clients work unmodified.

It may import `topic` and all below, never Spark. Its floors, from the top; a floor imports only those below it:

    broker                     one run of a broker: start reading here
    connection, handlers, web  bytes and commands of clients; HTTP: lookup, admin API, metrics
    services                   the broker's parts together, its health, settings at run time, metrics
    background                 periodic work beside clients: expire, limit, delete, repair
    observe                    stats of topics for operators
    topics                     the loaded topics
    subscriptions              deliver entries to consumers
    producing                  from a SEND to its receipt: producers, deduplication, the way into the journal
    cursors, reading           acknowledgements; entries for dispatch
    dispatch, runtime          the choice of consumers (pure); settings, views, commits, journals
"""
