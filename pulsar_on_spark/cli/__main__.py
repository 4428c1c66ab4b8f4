"""`python -m pulsar_on_spark.cli` is `pulsarpy`."""

from pulsar_on_spark.cli import main

if __name__ == "__main__":
    main()
