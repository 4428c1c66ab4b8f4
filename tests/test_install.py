"""The wheel in a fresh environment: Spark finds the format, a broker starts, and parts without their extras say so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.kit.installed_version import build_wheel, install_wheel

pytestmark = pytest.mark.long

HOUSE = Path(__file__).parent.parent
EXTRA_MODULES = ("fastapi", "httpx", "mmh3", "prometheus_client", "pulsar", "rich", "typer", "uvicorn", "uvloop")
"""Modules that only optional parts of the product import."""

PROGRAM = """
import os
from pyspark.sql import SparkSession
root = os.path.abspath("root")
spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
rows = spark.range(1_000).selectExpr("CAST(id AS STRING) value", "CAST(id % 5 AS STRING) __key")
rows.write.format("pulsarpy").mode("append").option("topic", "x").save(root)
spark.read.format("pulsarpy").option("topic", "x").load(root).createOrReplaceTempView("x")
print("FOUND", spark.sql("SELECT count(*), count(DISTINCT __key), count(DISTINCT __messageId) FROM x").collect()[0])
from pulsar_on_spark import Root, history
Root.open(root).build_history("x")
rows.write.format("pulsarpy").mode("append").option("topic", "x").save(root)
found = spark.sql("SELECT count(*), count_if(__key = '1') FROM {x}", x=history(spark, "x", root))
print("HISTORY", *found.collect()[0])
def refused(action, path):
    try:
        action(path)
    except Exception as error:
        print("SAID", str(error).splitlines()[0])
refused(lambda path: spark.read.format("pulsarpy").option("topic", "nope").load(path).count(), root)
refused(lambda path: spark.read.format("pulsarpy").option("topic", "x").load(path).count(), "root")
refused(rows.write.format("pulsarpy").mode("append").option("topic", "x").save, "root")
spark.stop()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(HOUSE, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    return install_wheel(wheel, tmp_path_factory.mktemp("fresh") / "venv")


def environment(python: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PYSPARK_PYTHON": str(python)}


def run(python: Path, code: str, cwd: Path, expect: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    env = environment(python) | variables
    done = subprocess.run([str(python), "-c", code], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stderr[-2_000:]
    return done


def without_extras(code: str) -> str:
    """A program in an environment that lacks every module of `EXTRA_MODULES`."""
    return f"import sys\nfor name in {EXTRA_MODULES!r}:\n    sys.modules[name] = None\n{code}"


def test_the_module_that_spark_looks_for_is_at_the_top_level(fresh_python: Path, tmp_path: Path):
    code = "import pkgutil; print([m.name for m in pkgutil.iter_modules() if m.name.startswith('pyspark_')])"
    assert run(fresh_python, code, tmp_path).stdout.strip() == "['pyspark_pulsarpy']"


def test_the_engine_that_runs_is_that_of_the_wheel(fresh_python: Path, tmp_path: Path):
    code = "import pulsar_on_spark; print(pulsar_on_spark.__file__)"
    assert run(fresh_python, code, tmp_path).stdout.startswith(str(fresh_python.parent.parent))


@pytest.mark.spark
def test_spark_connect_reads_and_writes_topics_and_histories_without_registering(fresh_python: Path, tmp_path: Path):
    pytest.importorskip("grpc", reason="Spark Connect's packages take protobuf 6.33")
    said = run(fresh_python, PROGRAM, tmp_path).stdout
    assert "FOUND Row(count(1)=1000, count(DISTINCT __key)=5, count(DISTINCT __messageId)=1000)" in said
    assert "HISTORY 2000 400" in said.splitlines(), "half in the table, half behind it"
    refusals = [line.partition("pulsar_on_spark.model.errors.")[2] for line in said.splitlines() if "SAID" in line]
    assert refusals[0].startswith("TopicNotFoundError: Topic persistent://public/default/nope does not exist")
    for relative in refusals[1:]:
        assert relative.startswith("InvalidArgumentError: Option path is root, which is in ")
        assert "give the root's absolute path on the server" in relative
    assert len(refusals) == 3


@pytest.fixture
def broker_url(fresh_python: Path, tmp_path: Path) -> Iterator[str]:
    pulsarpy = [str(fresh_python.parent / "pulsarpy"), "standalone", "--root", "root"]
    ports = ["--broker-port", "0", "--web-port", "0"]
    broker = subprocess.Popen(
        [*pulsarpy, *ports], cwd=tmp_path, env=environment(fresh_python), stdout=subprocess.PIPE, text=True
    )
    assert broker.stdout is not None
    url = next(found[0] for line in broker.stdout if (found := re.search(r"pulsar://\S+", line)))
    yield url
    broker.send_signal(signal.SIGTERM)
    broker.stdout.read()
    assert broker.wait(60) == 0


def test_a_broker_starts_from_the_wheel_and_serves_an_official_client(broker_url: str):
    client = pulsar.Client(broker_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("orders", "shipping")
    client.create_producer("orders").send(b"hello")
    assert consumer.receive(30_000).data() == b"hello"
    client.close()


def test_the_spark_face_works_without_the_brokers_and_the_command_lines_packages(fresh_python: Path, tmp_path: Path):
    code = """
import pulsar_on_spark.datasource.source
from pulsar_on_spark import Root
root = Root.create("root")
root.create_topic("orders", partitions=2)
print([topic.name for topic in root.status().topics])
"""
    said = run(fresh_python, without_extras(code), tmp_path).stdout
    assert said.strip() == "['persistent://public/default/orders']"


def test_the_command_line_without_its_packages_names_the_extra(fresh_python: Path, tmp_path: Path):
    code = "from pulsar_on_spark.cli import main; main()"
    said = run(fresh_python, without_extras(code), tmp_path, expect=1).stderr
    assert (
        said
        == "pulsarpy: The command line needs typer, which is not installed: `pip install 'pulsar-on-spark[cli]'`.\n"
    )


def test_a_broker_without_its_packages_names_the_extra(fresh_python: Path, tmp_path: Path):
    code = """
import sys
sys.modules["uvloop"] = None
sys.argv = ["pulsarpy", "standalone", "--root", "root"]
from pulsar_on_spark.cli import main
main()
"""
    said = run(fresh_python, code, tmp_path, expect=1).stderr
    assert said == "pulsarpy: A broker needs uvloop, which is not installed: `pip install 'pulsar-on-spark[broker]'`.\n"


def test_a_data_source_that_cannot_be_imported_is_reported_with_its_reason(fresh_python: Path, tmp_path: Path):
    code = "import sys; sys.modules['pyarrow'] = None; import pyspark_pulsarpy as m; print(hasattr(m, 'DefaultSource'))"
    done = run(fresh_python, code, tmp_path)
    assert done.stdout.strip() == "False"
    assert 'format("pulsarpy") is not available' in done.stderr
    assert "pyarrow" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.spark
def test_spark_logs_once_why_the_format_is_missing(fresh_python: Path, tmp_path: Path):
    """A module of ours lacks what it imports, in the worker that looks for formats, too."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['crc32c'] = None\n")
    code = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for _ in range(2):
    try:
        spark.read.format("pulsarpy").option("topic", "x").load("root")
    except Exception as error:
        print("[DATA_SOURCE_NOT_FOUND]" in str(error))
print(spark.range(3).count())
"""
    done = run(fresh_python, code, tmp_path, PYTHONPATH=str(tmp_path))
    assert done.stdout.split() == ["True", "True", "3"]
    reasons = [line for line in done.stderr.splitlines() if 'format("pulsarpy") is not available' in line]
    assert len(reasons) == 1
    assert reasons[0].endswith("failed: ModuleNotFoundError: import of crc32c halted; None in sys.modules")


BESIDE = ("pandas==2.2.3", "pyarrow==20.0.0")
SPARK_ALONE = f"""
import os, sys
from importlib.metadata import version
from importlib.util import find_spec
print([f"{{name}}=={{version(name)}}" for name in ("pandas", "pyarrow")])
print([name for name in {EXTRA_MODULES!r} if find_spec(name)])
from pulsar_on_spark import spark_session
root = os.path.abspath("root")
with spark_session(**{{"spark.master": "local[1]", "spark.ui.enabled": "false"}}) as spark:
    rows = spark.range(100).selectExpr("CAST(id AS STRING) value")
    rows.write.format("pulsarpy").mode("append").option("topic", "x").save(root)
    print(spark.read.format("pulsarpy").option("topic", "x").load(root).toPandas().value.nunique())
"""


@pytest.mark.spark
def test_the_spark_face_alone_installs_beside_pandas_and_pyarrow(wheel: Path, tmp_path: Path):
    """Neither is replaced, and neither web framework nor command line comes with it."""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    pytest.importorskip("uv", reason="the environment with the lowest versions has no uv")
    subprocess.run([*uv, "venv", "--python", sys.executable, str(tmp_path / "venv")], check=True)
    for wanted in (BESIDE, (str(wheel),)):
        subprocess.run([*uv, "pip", "install", "--python", str(tmp_path / "venv"), *wanted], check=True)
    said = run(tmp_path / "venv" / "bin" / "python", SPARK_ALONE, tmp_path).stdout.splitlines()
    assert said == [str(list(BESIDE)), "[]", "100"]


def test_the_lowest_versions_of_all_ranges_go_together_with_pandas_and_pyarrow(tmp_path: Path):
    pytest.importorskip("uv", reason="the environment with the lowest versions has no uv")
    (tmp_path / "beside.in").write_text("\n".join(BESIDE))
    compile_ = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--resolution", "lowest-direct"]
    files = [str(HOUSE / "pyproject.toml"), str(tmp_path / "beside.in")]
    done = subprocess.run([sys.executable, "-m", "uv", *compile_, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    resolved = set(done.stdout.split())
    assert {*BESIDE, "pyspark==4.2.0", "deltalake==1.6.0"} <= resolved
    assert not {name for line in resolved if (name := line.partition("==")[0]) in EXTRA_MODULES}
