"""The generated code is what the .proto file gives."""

from __future__ import annotations

import sys
from pathlib import Path

import grpc_tools.protoc
import pytest

import pulsar_on_spark

PACKAGE = Path(pulsar_on_spark.__file__).parent


@pytest.mark.parametrize("proto", ["pulsar_entry", "pulsar_commands"])
@pytest.mark.parametrize("suffix", ["_pb2.py", "_pb2.pyi"])
def test_generated_code_is_that_of_the_proto_file(tmp_path: Path, proto: str, suffix: str) -> None:
    arguments = ["-I", str(PACKAGE / "protocol"), f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert grpc_tools.protoc.main([sys.executable, *arguments, f"{proto}.proto"]) == 0
    name = f"{proto}{suffix}"
    assert (PACKAGE / "_generated" / name).read_text() == (tmp_path / name).read_text(), "run `make protocol`"
