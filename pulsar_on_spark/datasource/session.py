"""Spark sessions in which reads and writes of topics are fast, and Delta's SQL is available.

`format("pulsarpy")` works in any session of Spark 4.2, also without this module. `session_confs` returns the settings
for a session that other code builds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pyspark.core.context import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from pulsar_on_spark.datasource.delta_jars import DELTA_EXCLUDES, DELTA_JAR, delta_jars
from pulsar_on_spark.model.errors import SparkSessionError

OLDEST_JAVA = 17
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_PACKAGES = "spark.jars.packages"
_EXCLUDES = "spark.jars.excludes"
_JARS = "spark.jars"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Environment variable with the port of a JVM that `spark-submit` started before this program, packages included."""


def session_confs(delta: bool | None = None) -> dict[str, str]:
    """Return the Spark confs that `spark_session` sets, for a session that other code builds.

    - `spark.python.unix.domain.socket.enabled`: rows pass between the JVM and Python through Unix-domain sockets, which
      takes about 40 ms off every micro-batch and is faster for large reads.
    - `spark.python.daemon.module`: Spark prints no stack trace when it closes an idle Python worker.
    - With Delta: Delta's extension, its catalog, and in `spark.jars.packages` its JARs, without JARs of Spark itself.
      `spark_session` passes the JARs in `spark.jars` from Ivy's cache instead, which avoids Ivy's output at each start.

    Args:
        delta: True to configure Delta's SQL; None to do so if the extra `delta` is installed.
    """
    confs = {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "pulsar_on_spark.datasource.worker_daemon",
    }
    if delta is None:
        delta = _delta_is_installed()
    if delta:
        confs |= {
            _PACKAGES: DELTA_JAR,
            _EXCLUDES: ",".join(DELTA_EXCLUDES),
            "spark.sql.extensions": DELTA_EXTENSION,
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    return confs


def spark_session(app_name: str = "pulsar_on_spark", delta: bool | None = None, **confs: str) -> SparkSession:
    """Start a Spark session in which topics and Delta tables can be used, or return the running session.

    Python workers run this interpreter, unless the environment variable PYSPARK_PYTHON names another one. If it is not
    set, this function sets it, because Spark's search for Python data sources reads it.

    Args:
        app_name: The application's name.
        delta: True to configure Delta's SQL; None to do so if the extra `delta` is installed. To fetch Delta's JARs,
            the first session needs a Maven repository. Delta is not added to a running session.
        confs: Spark confs that are added to the confs of `session_confs`, or replace them. Names with dots are passed
            as in `spark_session(**{"spark.master": "local[2]"})`.

    Raises:
        SparkSessionError: Java is missing or too old, Delta's JARs cannot be fetched, Spark does not start, or `delta`
            is true and a session without Delta is running.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    running = SparkContext._active_spark_context
    starts_jvm = False
    if running is not None:
        if delta and DELTA_EXTENSION not in running.getConf().get("spark.sql.extensions", ""):
            raise SparkSessionError(
                "A Spark session without Delta already runs in this process: stop it, and call spark_session again."
            )
        # JARs can no longer be added, and without them the conf of Delta's catalog would break every query.
        delta = False
    elif SparkContext._gateway is None:
        require_java()
        starts_jvm = _SUBMITTED not in os.environ
    wanted = session_confs(delta) | confs
    with_packages = _PACKAGES in wanted
    try:
        if starts_jvm and wanted.get(_PACKAGES) == DELTA_JAR:
            wanted = _with_jars(wanted)
        builder = SparkSession.builder.appName(app_name)
        for name, value in wanted.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise SparkSessionError(_why_not_started(with_packages)) from error


def _with_jars(confs: dict[str, str]) -> dict[str, str]:
    """Return the confs with Delta's JARs as files instead of packages; unchanged if the JARs are not found."""
    jars = ",".join(map(str, delta_jars(confs)))
    if not jars:
        return confs
    others = {name: value for name, value in confs.items() if name not in (_PACKAGES, _EXCLUDES)}
    return others | {_JARS: f"{confs[_JARS]},{jars}" if confs.get(_JARS) else jars}


def require_java() -> None:
    """Check that Java 17 or newer is installed.

    Raises:
        SparkSessionError: no such Java is installed; the error names the package to install.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    version = 0
    if java is not None and Path(java).exists():
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
        if match := re.search(r'version "(\d+)', output):
            version = int(match.group(1))
    if version < OLDEST_JAVA:
        where = f"JAVA_HOME={home}" if home else "the PATH"
        raise SparkSessionError(
            f"Spark needs Java {OLDEST_JAVA} or newer, but {where} has {f'Java {version}' if version else 'none'}: "
            "install openjdk-17-jre-headless (Debian, Ubuntu)"
        )


def _delta_is_installed() -> bool:
    # Looking for the module is not enough: pyspark puts Delta's JAR, which contains one too, on this process's
    # sys.path, and the session deletes it when it stops.
    try:
        version("delta-spark")
    except PackageNotFoundError:
        return False
    return True


def _why_not_started(with_packages: bool) -> str:
    if with_packages:
        return (
            f"Spark did not start; most likely {DELTA_JAR} or another one of spark.jars.packages could not be fetched "
            "(Spark's output above names it): make a Maven repository reachable once, or pass delta=False to work "
            "without Delta's SQL"
        )
    return "Spark did not start: remove the cause that its output above names, and start it again"
