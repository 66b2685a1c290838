import pytest

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_flow.step.calls import ComputeOptions, ModelCall
from rlhf_flow.step.operations import Custom
from rlhf_runtime.dataplane.call_protocols import BY_KIND, protocol_of, row_bounds
from rlhf_runtime.dataplane.partition import BatchShape, Slice
from rlhf_runtime.dataplane.protocol import PROTOCOLS, Coordinates

from . import pairs


def call_of(kind: CallKind) -> ModelCall:
    return ModelCall("call", "actor", "call", kind, (), ())


def places(mesh: Mesh) -> list[Coordinates]:
    return [Coordinates.in_mesh(rank, mesh) for rank in mesh.ranks]


@pytest.mark.parametrize("kind", CallKind)
def test_every_kind_of_call_has_a_protocol(kind: CallKind) -> None:
    assert protocol_of(call_of(kind)) is PROTOCOLS[BY_KIND[kind]]


def test_a_call_has_the_protocol_that_its_operations_name() -> None:
    operation = Custom("mine:f", ["x"], ["y"], protocol=f"{pairs.MODULE}:BACKWARDS")
    options = ComputeOptions((operation,))
    call = ModelCall("call", None, "compute", CallKind.COMPUTE, ("x",), ("y",), options=options)
    mesh = Mesh(pool="a", data=2)
    found = [protocol_of(call).distribute(at) for at in places(mesh)]
    assert found == [Slice(1, 2), Slice(0, 2)]
    bounds = [row_bounds(call, BatchShape(5, 3), at, range(5)) for at in places(mesh)]
    assert bounds == [range(6, 15), range(6)]


@pytest.mark.parametrize("kind", CallKind)
@pytest.mark.parametrize("cut", [{"data": 1}, {"data": 20}, {"data": 3, "tensor": 2}], ids=str)
def test_the_bounds_of_all_parts_cover_the_batch(kind: CallKind, cut: dict[str, int]) -> None:
    shape, mesh = BatchShape(37, 3), Mesh(pool="a", **cut)
    bounds = [row_bounds(call_of(kind), shape, at, range(37)) for at in places(mesh)]
    assert {row for each in bounds for row in each} == set(range(shape.num_rows))
