"""The generated code is that of the .proto files, made by the lowest protoc that the dependencies allow."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

import pulsar_on_spark

PACKAGE = Path(pulsar_on_spark.__file__).parent
PROTOS = ["pulsar_entry", "pulsar_commands"]


def clear_json_names(messages: Iterable[DescriptorProto]) -> None:
    """Clear what protoc adds for its plugins and leaves out of generated code."""
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        clear_json_names(message.nested_type)


@pytest.mark.parametrize("proto", PROTOS)
def test_generated_code_is_that_of_the_proto_file(tmp_path: Path, proto: str) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="it takes a younger protobuf than the lowest")
    compiled = tmp_path / "descriptors"
    arguments = ["-I", str(PACKAGE / "protocol"), f"--descriptor_set_out={compiled}", f"{proto}.proto"]
    assert protoc.main([sys.executable, *arguments]) == 0
    wanted = FileDescriptorSet.FromString(compiled.read_bytes()).file[0]
    clear_json_names(wanted.message_type)
    generated = import_module(f"pulsar_on_spark._generated.{proto}_pb2").DESCRIPTOR
    assert FileDescriptorProto.FromString(generated.serialized_pb) == wanted, "run `make protocol`"


@pytest.mark.parametrize("proto", PROTOS)
def test_generated_code_runs_with_the_lowest_protobuf_of_the_dependencies(proto: str) -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    lowest = next(name for name in project["dependencies"] if name.startswith("protobuf>=")).split(",")[0]
    header = (PACKAGE / "_generated" / f"{proto}_pb2.py").read_text()
    assert f"# Protobuf Python Version: {lowest.removeprefix('protobuf>=')}." in header, "run `make protocol`"
