"""An editable installation in a fresh environment: a program finds the format there, and uses it by Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent

PROGRAM = """
import os
from pyspark.sql import SparkSession
root = os.path.abspath("root")
spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
rows = spark.range(1_000).selectExpr("CAST(id AS STRING) value", "CAST(id % 5 AS STRING) __key")
rows.write.format("pulsarpy").mode("append").option("topic", "x").save(root)
spark.read.format("pulsarpy").option("topic", "x").load(root).createOrReplaceTempView("x")
print("FOUND", spark.sql("SELECT count(*), count(DISTINCT __key), count(DISTINCT __messageId) FROM x").collect()[0])
try:
    spark.read.format("pulsarpy").option("topic", "nope").load(root).count()
except Exception as error:
    print("SAID", str(error).splitlines()[0])
spark.stop()
"""


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--editable", str(HOUSE)], check=True)
    # Dependencies from this environment. A path in a .pth file is not searched for further .pth files, so this
    # environment's own editable installation stays out.
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def run(python: Path, code: str, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYSPARK_PYTHON": str(python)}
    command = [str(python), "-c", code]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


def test_the_module_that_spark_looks_for_is_at_the_top_level(fresh_python: Path, tmp_path: Path):
    code = "import pkgutil; print([m.name for m in pkgutil.iter_modules() if m.name.startswith('pyspark_')])"
    assert run(fresh_python, code, tmp_path).strip() == "['pyspark_pulsarpy']"


@pytest.mark.spark
def test_spark_connect_reads_and_writes_topics_without_registering(fresh_python: Path, tmp_path: Path):
    said = run(fresh_python, PROGRAM, tmp_path)
    assert "FOUND Row(count(1)=1000, count(DISTINCT __key)=5, count(DISTINCT __messageId)=1000)" in said
    assert "TopicNotFoundError: Topic persistent://public/default/nope does not exist" in said
