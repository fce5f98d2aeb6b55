"""Emulating an object's host code: the launches of real objects, and refusals."""

import pytest

from avo_cute.build.launch import (
    Nothing,
    Scalar,
    Tensor,
    Tuple,
    launches,
    parse_arguments,
)
from avo_cute.records import Failure, Status
from avo_cute.target import find_target

B200, H200 = find_target("b200"), find_target("h200")


def vector(size, dtype="float32"):
    return Tensor((size,), (1,), dtype)


@pytest.mark.parametrize(("size", "blocks"), [(1, 1), (128, 1), (129, 2), (1_000_000, 7813)])
def test_the_grid_follows_the_arguments(honest, size, blocks):
    (launch,) = launches(honest, [vector(size), vector(size), Scalar(2.0)], B200)
    assert launch.grid == (blocks, 1, 1)
    assert (launch.block, launch.cluster) == ((128, 1, 1), (1, 1, 1))
    assert (launch.smem_bytes, launch.pdl, launch.attributes) == (0, False, ())
    assert launch.kernel.startswith("kernel_cutlass_kernel_")


def test_a_cluster_is_seen(tiny):
    arguments = [vector(1024), vector(1024), Scalar(2.0)]
    (launch,) = launches(tiny["sm_100a:cluster"], arguments, B200)
    assert launch.cluster == (2, 1, 1)
    assert launch.attributes == (4,)


def test_launches_come_in_order(tiny):
    arguments = [vector(1024), vector(1024), Scalar(2.0)]
    first, second = launches(tiny["sm_100a:two-kernels"], arguments, B200)
    assert first.kernel != second.kernel
    assert "second" in second.kernel


def test_the_same_object_gives_the_same_answer(tiny):
    arguments = [vector(999), vector(999), Scalar(2.0)]
    found = [launches(tiny["sm_90a:honest"], arguments, H200) for _ in range(3)]
    assert found[0] == found[1] == found[2]
    assert isinstance(found[0], tuple)


def test_a_wrong_count_is_refused_with_the_signature(honest):
    found = launches(honest, [vector(8), vector(8)], B200)
    assert isinstance(found, Failure)
    assert found.status is Status.AUDIT_FAILED
    assert "Expects 3 parameters" in found.reason
    assert "mX: Tensor([n0], float32)" in found.reason
    assert "scale: float32" in found.reason


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([vector(8), vector(8, "bfloat16"), Scalar(1.0)], "dtype=float32"),
        ([vector(8), vector(9), Scalar(1.0)], "mY.shape[0]"),
        ([vector(8), Tensor((8,), (2,), "float32"), Scalar(1.0)], "mY.strides[0]"),
        ([vector(8), Tensor((2, 4), (4, 1), "float32"), Scalar(1.0)], "ndim=1"),
        ([vector(8), Nothing(), Scalar(1.0)], "#1"),
        ([vector(8), Tuple((vector(8),)), Scalar(1.0)], "#1"),
        ([vector(8), vector(8), Tuple(())], "#2"),
    ],
    ids=["dtype", "size", "stride", "rank", "none", "tuple", "scalar"],
)
def test_wrong_arguments_are_refused_by_name(honest, arguments, says):
    found = launches(honest, arguments, B200)
    assert isinstance(found, Failure)
    assert says in found.reason


def test_plain_arguments_are_row_major():
    plain = [
        ("tensor", (2, 3, 4), "bfloat16"),
        ("none",),
        ("float", 1),
        ("int", 7),
        ("tuple", [("none",), ("tensor", [5], "float32")]),
    ]
    assert parse_arguments(plain) == (
        Tensor((2, 3, 4), (12, 4, 1), "bfloat16"),
        Nothing(),
        Scalar(1.0),
        Scalar(7),
        Tuple((Nothing(), Tensor((5,), (1,), "float32"))),
    )
    with pytest.raises(ValueError, match="arguments"):
        parse_arguments([("matrix", (1, 2))])
