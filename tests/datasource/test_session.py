from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pulsar_on_spark.datasource import session
from pulsar_on_spark.datasource.delta_jars import DELTA_JAR
from pulsar_on_spark.datasource.session import require_java, session_confs, spark_session
from pulsar_on_spark.model.errors import SparkSessionError


def test_confs_without_delta_name_no_jar():
    assert not [name for name in session_confs(delta=False) if "jars" in name or "extensions" in name]


def test_confs_with_delta_pin_the_jar():
    assert session_confs(delta=True)["spark.jars.packages"] == DELTA_JAR


def test_missing_java_is_one_sentence_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkSessionError, match=r"JAVA_HOME=.* has none: install openjdk-17-jre-headless"):
        require_java()


def test_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkSessionError, match=r"Java 17 or newer, but .* has Java 11"):
        require_java()


def test_the_jvm_gets_the_python_and_socket_settings(spark: SparkSession, spark_python: Path):
    """The session was started where `sys.executable` was this Python."""
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.sparkContext.pythonExec == str(spark_python)


@pytest.mark.long
def test_delta_sql_works(delta_spark: SparkSession, tmp_path: Path):
    table = f"delta.`{tmp_path / 'table'}`"
    delta_spark.sql(f"CREATE TABLE {table} (airport STRING, delay INT) USING delta")
    delta_spark.sql(f"INSERT INTO {table} VALUES ('EWR', 3), ('JFK', 5)")
    rows = delta_spark.sql(f"SELECT airport, delay FROM {table} ORDER BY delay").collect()
    assert [tuple(row) for row in rows] == [("EWR", 3), ("JFK", 5)]


IVY = """<ivysettings><settings defaultResolver="here"/><resolvers><filesystem name="here">
  <ivy pattern="{folder}/[organisation]/[module]/ivy-[revision].xml"/>
  <artifact pattern="{folder}/[organisation]/[module]/jars/[artifact]-[revision].jar"/>
</filesystem></resolvers></ivysettings>"""
PROGRAM = """
import sys
from pulsar_on_spark import spark_session
ivy, settings, packages = sys.argv[1:]
confs = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.jars.ivy": ivy} | (
    {"spark.jars.packages": packages} if packages else {})
spark = spark_session(delta=True, **confs, **{"spark.jars.ivySettings": settings})
spark.sql(f"CREATE TABLE delta.`{ivy}/table` USING delta AS SELECT 1 a")
print("ROWS", spark.table(f"delta.`{ivy}/table`").count())
spark.read.format("pulsarpy").option("topic", "x").load(f"{ivy}/none")
"""


@pytest.fixture
def repository(delta_spark: SparkSession, tmp_path: Path) -> Path:
    """Settings by which Ivy finds Delta's JARs where the tests' own session has them."""
    jar = Path(delta_spark.conf.get("spark.jars").split(",")[0])
    settings = tmp_path / "settings.xml"
    settings.write_text(IVY.format(folder=jar.parents[3]))
    return settings


def start(folder: Path, settings: Path, packages: str = "") -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", PROGRAM, str(folder), str(settings), packages]
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_session_fetches_deltas_jars_quietly(repository: Path, tmp_path: Path):
    done = start(tmp_path / "ivy", repository)
    assert done.stdout.endswith("ROWS 1\n")
    assert f"Fetching Delta's JARs into {tmp_path / 'ivy'}, which is done once." in done.stderr
    assert not [line for line in done.stderr.splitlines() if "::" in line or "io.delta#" in line]
    assert "BrokenPipe" not in done.stderr
    assert f"NotARootError: Root {tmp_path / 'ivy' / 'none'} does not exist" in done.stderr


@pytest.mark.long
def test_jars_that_cannot_be_fetched_are_named_with_sparks_lines_and_the_remedy(tmp_path: Path):
    settings = tmp_path / "settings.xml"
    settings.write_text(IVY.format(folder=tmp_path / "nothing"))
    done = start(tmp_path / "ivy", settings)
    assert done.returncode == 1
    assert f"unresolved dependency: {DELTA_JAR.replace(':', '#', 1).replace(':', ';')}" in done.stderr
    assert "pass delta=False to work without Delta's SQL" in done.stderr.strip().splitlines()[-1]


@pytest.mark.long
def test_unfetchable_packages_of_the_user_are_named_too(tmp_path: Path):
    settings = tmp_path / "settings.xml"
    settings.write_text(IVY.format(folder=tmp_path / "nothing"))
    done = start(tmp_path / "ivy", settings, "no.such.group:nothing:0")
    assert "unresolved dependency: no.such.group#nothing;0" in done.stderr
    assert "one of spark.jars.packages could not be fetched" in done.stderr.strip().splitlines()[-1]


def test_jars_of_the_user_stay_beside_deltas(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "delta_jars", lambda confs: (Path("/ivy/delta.jar"),))
    confs = session._with_jars(session_confs(delta=True) | {"spark.jars": "mine.jar"})
    assert confs["spark.jars"] == "mine.jar,/ivy/delta.jar"
    assert not {"spark.jars.packages", "spark.jars.excludes"} & confs.keys()


def test_asking_again_gives_the_running_session_and_leaves_its_catalog_alone(spark: SparkSession):
    before = spark.conf.get("spark.sql.catalog.spark_catalog", None)
    assert spark_session("again").sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.catalog.spark_catalog", None) == before
    assert spark.sql("SELECT max(id) FROM range(3)").first()[0] == 2
    if before is None:
        with pytest.raises(SparkSessionError, match="without Delta already runs"):
            spark_session("again", delta=True)
