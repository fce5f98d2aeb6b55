"""What can be known of Blackwell kernels without a Blackwell GPU: FA4's launch contract there."""

from dataclasses import asdict

import pytest

from avo_cute.build import BuildRequest, Source, build_class
from avo_cute.build.elf import read_cubin, read_object
from avo_cute.build.launch import launches, parse_arguments
from avo_cute.build.sass import disassemble
from avo_cute.measure.hotloop import describe_loops
from avo_cute.plan import seed_of
from avo_cute.records import Failure
from avo_cute.sandbox import choose_layer
from avo_cute.target import find_target
from avo_cute.task import find_task

FA4 = find_task("fa4")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seed(tmp_path_factory) -> Source:
    folder = tmp_path_factory.mktemp("fa4")
    for name, data in seed_of(FA4).files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return Source("seed", folder)


@pytest.fixture(scope="module", params=["b200", "b300"])
def built(request, seed, tmp_path_factory):
    """(target, parameters of a workload, object) of FA4's non-causal forward."""
    target, (workload,) = find_target(request.param), FA4.select("mha-full-4k")
    cache = tmp_path_factory.mktemp("cache")
    asked = BuildRequest(seed, FA4.directory, target, (workload,), choose_layer(), cache)
    found = build_class(asked)
    assert not isinstance(found, Failure), found
    return target, dict(workload.params), found[workload.name].read_bytes()


def arguments(target, params):
    return parse_arguments(FA4.build.arguments(params, asdict(target)))


def test_the_object_is_called_with_25_arguments(built):
    target, params, data = built
    given = arguments(target, params)
    assert len(given) == 25
    (launch,) = launches(data, given, target)
    assert launch.cluster == (2, 1, 1), "two CTAs share a tile"
    assert launch.grid == (target.sms, 1, 1), "the scheduler is persistent"
    assert launch.smem_bytes <= target.smem_bytes


def test_any_other_number_is_refused_by_the_object_itself(built):
    target, params, data = built
    given = arguments(target, params)
    for wrong in (given[:-1], (*given, given[-1])):
        refused = launches(data, wrong, target)
        assert isinstance(refused, Failure)
        assert "Expects 25 parameters" in refused.reason


def test_hoppers_arguments_do_not_fit(built):
    target, params, data = built
    refused = launches(data, arguments(find_target("h200"), params), target)
    assert isinstance(refused, Failure)


def test_the_cubin_is_for_this_gpu_alone(built):
    target, _, data = built
    cubin = read_cubin(read_object(data).cubin)
    assert cubin.arch == target.arch


def test_the_digest_shows_the_loops_of_all_roles(built):
    target, params, data = built
    (launch,) = launches(data, arguments(target, params), target)
    text = describe_loops(disassemble(read_object(data).cubin), launch, room=3000)
    assert len(text.encode()) <= 3000
    loops = [line for line in text.splitlines() if line.startswith("loop at")]
    assert "tensor" in loops[0] and "1 warps" in loops[0], "one warp issues all products"
    assert any("mufu" in line and "8 warps" in line for line in loops), "two softmax warpgroups"
    assert any("tma" in line for line in loops), "the loading warp"
    assert "UTCHMMA.2CTA x" in text
