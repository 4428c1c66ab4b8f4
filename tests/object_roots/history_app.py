"""A Spark application with Hadoop's S3A: prints the values of a topic's history and of what is behind it as JSON.

Arguments: the root's URL, the bucket's URL, the store's options as JSON, and a folder for the JARs.
"""

import json
import sys
from pathlib import Path

from bench.object_store import Place, s3a_confs, s3a_jars
from pulsar_on_spark import history, spark_session


def main() -> None:
    root, bucket, options, folder = sys.argv[1:]
    place = Place(bucket, json.loads(options), 0.0, None)
    spark = spark_session("history", delta=False, **s3a_confs(s3a_jars(Path(folder)), [place]))
    values = [bytes(row.value).decode() for row in history(spark, "t", root).collect()]
    spark.stop()
    print(f"\n{json.dumps(sorted(values))}")


if __name__ == "__main__":
    main()
