"""Official test suites of Pulsar's clients, run against a broker: `make conformance`.

`run` is the command, `suites` has the suites and their tests, `outcomes` judges a test's output, `brokers` starts the
broker under test or a real Pulsar, `record` keeps the results of each side and `report` writes docs/conformance.md.
Nothing of a suite is copied here, and no test is left out or treated specially.
"""
