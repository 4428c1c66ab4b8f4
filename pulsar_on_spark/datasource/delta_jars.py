"""Delta's JARs for a new session, from Ivy's cache, into which the first session fetches them.

With `spark.jars.packages`, Spark would resolve the packages at each start, and print forty lines. So a separate process
resolves them once, and its output is shown only if it fails. Sessions get the files in `spark.jars`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from pyspark.conf import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

log = logging.getLogger(__name__)

DELTA_JAR: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
DELTA_EXCLUDES: Final = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.parquet:parquet-hadoop",
    "com.fasterxml.jackson.core:jackson-databind",
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "org.slf4j:slf4j-api",
    "org.locationtech.jts:jts-core",
    "org.roaringbitmap:RoaringBitmap",
    "org.xerial.snappy:snappy-java",
    "com.github.luben:zstd-jni",
)
"""Dependencies of Delta's JAR that Spark 4.2 includes, so that 8 JARs (13 MB) are fetched instead of 33 (87 MB)."""
_RESOLVED: Final = (
    DELTA_JAR,
    "io.delta:delta-storage:4.4.0",
    "io.delta:delta-kernel-api:4.4.0",
    "io.delta:delta-kernel-defaults:4.4.0",
    "io.delta:delta-kernel-unitycatalog:4.4.0",
    "io.unitycatalog:unitycatalog-client:0.6.0",
    "io.unitycatalog:unitycatalog-hadoop:0.6.0",
    "com.google.code.findbugs:jsr305:3.0.2",
)
"""Delta's JAR, and those of its dependencies that Spark does not include, with versions."""
_IVY_FOLDER: Final = "spark.jars.ivy"
_DEFAULT_IVY_FOLDER: Final = "~/.ivy2.5.2"
"""Ivy's folder by Spark 4.2's default, so that JARs that other sessions have fetched are found."""


def delta_jars(confs: Mapping[str, str]) -> tuple[Path, ...]:
    """Return Delta's JARs from Ivy's cache, and fetch them first if they are missing.

    Args:
        confs: The session's confs, of which those that begin with `spark.jars` configure packages and their sources.

    Returns:
        The JARs; empty if they are not found after fetching, because a custom cache may use other names.

    Raises:
        PySparkRuntimeError: the JARs cannot be fetched; Spark's reason is on standard error.
    """
    folder = Path(confs.get(_IVY_FOLDER, _DEFAULT_IVY_FOLDER)).expanduser().absolute()
    jars = _cached(folder)
    if not jars:
        log.warning("Fetching Delta's JARs into %s, which is done once.", folder)
        _resolve(dict(confs) | {_IVY_FOLDER: str(folder)})
        jars = _cached(folder)
    return jars


def _cached(folder: Path) -> tuple[Path, ...]:
    """Return the JARs in Ivy's cache; empty if one is missing. Ivy gives a file its name when it is complete."""
    coordinates = [jar.split(":") for jar in _RESOLVED]
    files = [folder / "cache" / group / name / "jars" / f"{name}-{version}.jar" for group, name, version in coordinates]
    return tuple(files) if all(file.is_file() for file in files) else ()


def _resolve(confs: Mapping[str, str]) -> None:
    """Fetch the packages: start a JVM of Spark, which first resolves the packages in its confs, and end it."""
    conf = SparkConf(loadDefaults=False)
    for name, value in confs.items():
        if name.startswith("spark.jars"):
            conf.set(name, value)
    with TemporaryFile() as output:
        try:
            gateway = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError:
            output.seek(0)
            print(output.read().decode(errors="replace"), file=sys.stderr)
            raise
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
