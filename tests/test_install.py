"""The wheel in a fresh environment: Spark finds the format, a broker starts, and parts without their extras say so."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pulsar
import pytest

import pulsar_on_spark

HOUSE = Path(__file__).parent.parent
PACKAGE = Path(pulsar_on_spark.__file__).parent
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
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(HOUSE)]
    subprocess.run([*pip, *build], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    home = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(wheel)], check=True)
    # Dependencies from this environment. A path in a .pth file is not searched for further .pth files, so this
    # environment's own editable installation stays out.
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def environment(python: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PYSPARK_PYTHON": str(python)}


def run(python: Path, code: str, cwd: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(python), "-c", code], cwd=cwd, env=environment(python), capture_output=True, text=True, check=False
    )
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
def test_spark_connect_reads_and_writes_topics_without_registering(fresh_python: Path, tmp_path: Path):
    pytest.importorskip("grpc", reason="Spark Connect's packages take protobuf 6.33")
    said = run(fresh_python, PROGRAM, tmp_path).stdout
    assert "FOUND Row(count(1)=1000, count(DISTINCT __key)=5, count(DISTINCT __messageId)=1000)" in said
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


def third_party_imports(package: str) -> set[str]:
    """Top-level modules that the modules of a package import, at whatever depth of their code."""
    found = set()
    for path in (PACKAGE / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"pulsar_on_spark"}


def declared(*extras: str) -> set[str]:
    """Names of the distributions that the project requires, with these extras' own."""
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return {normal(re.split(r"[<>=\[ ]", requirement)[0]) for requirements in lists for requirement in requirements}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("package", "extras"),
    [
        ("model", ()),
        ("metadata", ()),
        ("ledger", ()),
        ("protocol", ()),
        ("topic", ()),
        ("datasource", ("delta",)),
        ("broker", ("broker",)),
        ("cli", ("cli", "broker", "client")),
        ("jobs", ("cli", "demo")),
    ],
)
def test_each_package_imports_only_what_its_extras_declare(package: str, extras: tuple[str, ...]):
    homes = packages_distributions()
    known = declared(*extras)
    unknown = {name for name in third_party_imports(package) if known.isdisjoint(map(normal, homes[name]))}
    assert unknown == set()


def test_no_runtime_dependency_is_pinned_to_one_version():
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    assert [requirement for requirement in named if "==" in requirement] == []
