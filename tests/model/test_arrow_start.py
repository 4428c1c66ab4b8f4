"""The start of Arrow without pandas."""

from __future__ import annotations

import subprocess
import sys

WORK = """
import sys
import pyarrow as pa
from pulsar_on_spark.model.arrow_start import start_arrow_without_pandas
start_arrow_without_pandas()
assert pa.array([1, None]).to_pylist() == [1, None]
assert pa.table({"a": ["x"]}).to_pylist() == [{"a": "x"}]
assert "pandas" not in sys.modules
assert pa.table({"a": ["x"]}).to_pandas()["a"].tolist() == ["x"]
import pandas
assert pa.Array.from_pandas(pandas.Series([1, 2])).to_pylist() == [1, 2]
print("done")
"""


def test_arrays_of_python_values_load_no_pandas_and_pandas_works_where_it_is_wanted() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "done", done.stderr
