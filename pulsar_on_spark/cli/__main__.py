"""Entry point of `python -m pulsar_on_spark.cli`, which is the same as `pulsarpy`."""

from pulsar_on_spark.cli import main

if __name__ == "__main__":
    main()
