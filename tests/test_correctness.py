"""Who is refused by which check: honest and dishonest attention, judged on CPU tensors."""

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from tests.attention_arms import Flash, cubic, fp8, times_reciprocal, toward_zero

from avo_cute.measure.compare import FACTOR
from avo_cute.measure.correctness import (
    RUNS,
    ArmFault,
    ReferenceFault,
    check_point,
    check_properties,
    quick,
)
from avo_cute.measure.device import DeviceFault, Unavailable
from avo_cute.measure.guarded import Inputs
from avo_cute.measure.request import Point
from avo_cute.measure.wrong import WrongArm, self_test
from avo_cute.task import find_task

REFERENCE = find_task("fa4").reference
SEED = Flash("seed")
LARGE = SimpleNamespace(**vars(REFERENCE) | {"small": lambda params: False})


class Here:
    """The smallest device: this process. `fault` breaks it at the next synchronisation."""

    torch_device = "cpu"
    fault = ""

    def synchronize(self):
        if self.fault:
            raise DeviceFault(self.fault)

    def turn(self, arm):
        pass


def point(name, *shape, head_dim=64, causal=False):
    names = "batch", "seqlen_q", "seqlen_k", "heads", "kv_heads"
    params = dict(zip(names, shape, strict=True)) | {"head_dim": head_dim, "causal": causal}
    return Point(name, params)


FULL = point("full", 2, 300, 300, 4, 2)
CAUSAL = point("causal", 2, 129, 320, 4, 4, causal=True)
DEAD = point("dead", 1, 200, 65, 3, 1, causal=True)  # 135 queries see no key
ONE = point("one", 1, 1, 1, 1, 1, causal=True)
DECODE = point("decode", 3, 1, 203, 6, 2)


@pytest.fixture(autouse=True)
def one_thread():
    """These tensors are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def judge(candidate, where=FULL, families=("normal",), seed=SEED, reference=REFERENCE, draw=1):
    rng = random.Random(draw)
    return check_point(Here(), reference, candidate, seed, where, families, rng)


def failure(candidate, where=FULL, family="normal", **settings):
    (found,) = judge(candidate, where, (family,), **settings)
    assert (found.worst > 1) == bool(found.failure)
    return found.failure


def broken_properties(candidate, where):
    found = check_properties(Here(), REFERENCE, candidate, SEED, where, random.Random(1))
    return {one.family for one in found if one.failure}


# Honest kernels


@pytest.mark.parametrize(
    ("kernel", "where"),
    [
        (Flash(tile=128, lazy=8.0), FULL),
        (Flash(forwards=True, exp2=cubic), CAUSAL),
        (Flash(tile=80, lazy=8.0, exp2=cubic), DEAD),
        (Flash(tile=16, forwards=True), ONE),
        (Flash(tile=48, lazy=8.0), DECODE),
    ],
    ids=lambda x: x.name,
)
def test_other_honest_arithmetic_passes_every_family_and_property(kernel, where):
    found = judge(kernel, where, REFERENCE.FAMILIES)
    assert [f.family for f in found] == list(REFERENCE.FAMILIES)
    for one in found:
        assert not one.failure and "unsupported" not in one.what, one
        assert one.worst <= 0.95, one
    assert not broken_properties(kernel, where)


def test_the_seed_itself_is_as_wrong_as_itself():
    (found,) = judge(SEED)
    assert found.error == found.seed_error > 1e-3 and found.worst == pytest.approx(1 / FACTOR, 0.05)


def test_large_workloads_are_judged_by_fp32_and_sampled_fp64():
    found = judge(Flash(tile=128, lazy=8.0), CAUSAL, REFERENCE.FAMILIES, reference=LARGE)
    assert not [one for one in found if one.failure or "unsupported" in one.what]
    assert "relative error of out" in failure(Flash(round_p=fp8), CAUSAL, reference=LARGE)


# Dishonest kernels: written, read, computed


def sink(change):
    """Flash, spoilt afterwards by `change(params, inputs, outputs)`."""
    return Flash("spoilt", after=change)


@dataclass(frozen=True)
class Partly:
    """Computes everything and writes what `write(outputs, results)` copies."""

    write: object
    name: str = "partly"

    def bind(self, params, inputs, outputs):
        def launch():
            results = [torch.empty_like(x) for x in outputs]
            Flash().bind(params, inputs, results)()
            self.write(outputs, results)

        return launch


def without(index, where):
    """Leave out `where` of output `index`."""

    def write(outputs, results):
        for i, (out, result) in enumerate(zip(outputs, results, strict=True)):
            keep = torch.ones(result.shape, dtype=torch.bool)
            if i == index:
                keep[where] = False
            out[keep] = result[keep]

    return Partly(write)


EVERY_7TH = [i for block in range(3, 19, 7) for i in range(16 * block, min(300, 16 * block + 16))]


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (without(0, (slice(None), slice(256, None))), "never written"),  # R18, the last tile
        (without(0, (slice(None), slice(None), 3)), "never written"),  # R18, a head
        (without(0, (0, EVERY_7TH)), "never written"),  # R18, every 7th block
        (without(0, (1, 299, 3, 63)), "1 of 153600 values of out .* 1 were never written"),
        (without(1, ...), "values of lse are not finite"),  # R27: the log-sum-exp is left out
        (without(1, (0, 0, 5)), "1 of 2400 values of lse"),
    ],
)
def test_what_is_left_unwritten_is_seen(kernel, why):
    assert why.split(" .* ")[0] in failure(kernel) and why.split(" .* ")[-1] in failure(kernel)


def beyond(tensor, elements):
    """The memory behind a tensor: what a wrong address would reach."""
    last = tensor.storage_offset() + sum(
        (n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.as_strided((elements,), (1,), last + 1)


def read_beyond_k(params, inputs, outputs):
    """R26: a tile that hangs over the end; fine if there were zeros."""
    outputs[0][-1, -1].add_(beyond(inputs[1], 64)[None] * 0)


def write_beyond(which):
    def change(params, inputs, outputs):
        beyond((inputs, outputs)[which][-1], 3).fill_(0)

    return change


def set_nan(params, inputs, outputs):
    outputs[0][1, 7, 2, 5] = torch.nan


def set_inf(params, inputs, outputs):
    outputs[1][1, 2, 3] = torch.inf


def change_input(params, inputs, outputs):
    inputs[2][0, 0, 0, 0] += 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (set_nan, "1 of 153600 values of out are not finite"),  # R17
        (set_inf, "1 of 2400 values of lse are not finite"),
        (read_beyond_k, "256 of 153600 values of out are not finite"),
        (write_beyond(0), "a guard has changed"),
        (write_beyond(1), "a guard has changed"),
        (change_input, "changed its inputs"),  # R15
    ],
    ids=str.split("nan inf over-read input-overrun output-overrun changed-input"),
)
def test_what_goes_astray_is_seen_before_any_number_is_compared(change, why):
    assert failure(sink(change)).endswith(why)


def test_a_changed_input_does_not_change_what_is_expected():
    """The seed runs on fresh inputs: it must not look wrong because the candidate spoilt them."""

    def negate(params, inputs, outputs):
        inputs[2].neg_()

    assert failure(Flash(before=negate)) == "changed its inputs"


def out_is(make):
    return sink(lambda params, inputs, outputs: outputs[0].copy_(make(params, *inputs)))


def lse_is(make):
    return sink(lambda params, inputs, outputs: outputs[1].copy_(make(outputs[1])))


class PadsKeys(Flash):
    """R23: right where tiles are full; beyond, zeros are taken for keys."""

    def attention(self, params, q, k, v):
        pad = (0, 0, 0, 0, 0, -k.shape[1] % 16)
        return super().attention(params, q, *(torch.nn.functional.pad(x, pad) for x in (k, v)))


class AssumesStrides(Flash):
    """R27: takes q for contiguous."""

    def attention(self, params, q, k, v):
        return super().attention(params, q.as_strided(q.shape, packed(q.shape)), k, v)


def packed(shape):
    return torch.empty(shape, device="meta").stride()


@pytest.mark.parametrize(
    ("kernel", "family", "what"),
    [
        (out_is(lambda params, q, k, v: q * 0), "normal", "error"),  # R14
        (out_is(lambda params, q, k, v: q), "normal", "error"),  # R16
        (out_is(lambda params, q, k, v: v.mean(1, True).repeat(1, 1, 2, 1)), "normal", "error"),
        (Flash(skip=lambda keys: keys % 256 == 255), "normal", "error"),  # R19
        (Flash(skip=lambda keys: keys < 1), "climb-early", "error"),
        (Flash(round_p=fp8), "normal", "relative error of out"),  # R20
        (Flash(round_p=toward_zero), "one-sign", "bias of out"),
        (Flash(round_p=toward_zero), "v-mean-10", "bias of out"),
        (Flash(scale=lambda params: params["head_dim"] ** -0.5), "scale", "error"),
        (AssumesStrides(), "strided", "error"),
        (AssumesStrides(), "transposed", "error"),
        (PadsKeys(), "normal", "error"),
        (lse_is(lambda lse: lse * 0), "normal", "error of lse"),
        (lse_is(lambda lse: lse + 4e-4), "normal", "error of lse"),
    ],
)
def test_wrong_arithmetic_is_caught_by_its_family(kernel, family, what):
    assert what in failure(kernel, family=family)


def test_a_kernel_may_be_right_where_its_mistake_does_not_show():
    """The families decide: each of these passes what it is not caught by."""
    whole = point("whole", 1, 64, 320, 2, 2)
    assert not failure(PadsKeys(), whole)
    assert not failure(Flash(scale=lambda params: params["head_dim"] ** -0.5), whole)
    assert not failure(AssumesStrides(), whole)


@pytest.mark.parametrize(
    ("kernel", "walk"),
    [
        (Flash(running=False), "climb-early"),  # R21: the first tile's maximum for ever
        (Flash(lazy=1000.0), "climb-early"),  # R21: a threshold that is never reached
        (Flash(maximum=False), "climb-early"),
        (Flash(running=False, forwards=True), "climb-late"),
    ],
)
def test_only_logits_that_climb_along_the_walk_expose_a_lost_maximum(kernel, walk):
    for where in (FULL, CAUSAL):
        assert "not finite" in failure(kernel, where, walk)
        for family in ("normal", "q4", "one-sign", "v-mean-10"):
            assert not failure(kernel, where, family), family
    assert walk == "climb-late" or "climb-early" in REFERENCE.FEW


LONG = point("long", 1, 520, 1025, 2, 2)
LONG_CAUSAL = point("long causal", 1, 577, 577, 2, 1, causal=True)


@pytest.mark.parametrize("draw", [1, 2])
@pytest.mark.parametrize("where", [LONG, LONG_CAUSAL], ids=lambda p: p.name)
@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        (Flash(ignored=12.0, tile=128), "plateau"),  # each key is small, all are not
        (Flash(ignored=12.0, tile=128, forwards=True), "plateau"),
        (Flash(ignored=16.0), "plateau"),
        (Flash(lazy=126.0, divide=times_reciprocal), "climb-early"),
    ],
)
def test_what_shows_only_in_sums_of_many_keys_is_seen_by_a_family(kernel, family, where, draw):
    assert failure(kernel, where, family, draw=draw)
    assert not failure(kernel, where, "normal", draw=draw)
    assert family in REFERENCE.FEW


@pytest.mark.parametrize("draw", [1, 2])
def test_a_sum_of_many_keys_near_the_end_of_fp32_is_too_large(draw):
    kernel = Flash(lazy=120.0, divide=times_reciprocal)  # no single weight does
    assert "relative error of out" in failure(kernel, LONG, "climb-early", draw=draw)
    assert not failure(Flash(lazy=64.0, divide=times_reciprocal), LONG, "climb-early", draw=draw)


def test_small_keys_dropped_from_p_alone_are_seen():
    """The log-sum-exp stays right, and so does the sum."""
    right, short = Flash(), Flash(ignored=12.0)

    def change(params, inputs, outputs):
        out, lse = short.attention(params, *inputs)
        outputs[0].copy_(out * (lse - outputs[1]).exp().transpose(1, 2)[..., None])

    kernel = replace(right, after=change)
    assert "of out" in failure(kernel, LONG, "plateau")
    assert not failure(kernel, LONG)


@pytest.mark.parametrize("value", [1e-3, float("-inf")])
def test_rows_without_keys_are_exact(value):
    index = 0 if value == 1e-3 else 1

    def change(params, inputs, outputs):
        (outputs[0][0, 3] if index == 0 else outputs[1][0, 0, 150:]).fill_(value)

    assert failure(sink(change), DEAD)
    assert not failure(Flash(), DEAD)


def low_bit(tensor):
    """Flip the last bit of each element."""
    tensor.view(torch.int16).bitwise_xor_(1)


def race():
    calls = iter(range(1000))

    def change(params, inputs, outputs):
        if next(calls) % 9 == 8:
            low_bit(outputs[0][0, 0, 0, :1])

    return change


def leak(params, inputs, outputs):
    """One bit of an element says that there are others."""
    if params["batch"] > 1 and inputs[2][0, 0, 0, 0] != 1:
        low_bit(outputs[0][:, 0, 0, :1])


def peek(params, inputs, outputs):
    """The last bit of a result depends on a key that most queries must not see."""
    hit = (inputs[1][:, -1, 0, 0] > 0) & (inputs[2][:, 0, 0, 0] != 1)
    outputs[0][hit, :, 0, 0] *= 1 + 2**-7


@pytest.mark.parametrize(
    ("kernel", "where", "broken"),
    [
        (sink(race()), FULL, "20 runs"),
        (sink(leak), FULL, "batch element alone"),
        (sink(peek), CAUSAL, "future keys changed"),
    ],
)
def test_properties_catch_what_is_too_small_for_numbers(kernel, where, broken):
    assert not failure(kernel, where)
    assert broken_properties(kernel, where) == {broken}


@dataclass(frozen=True)
class Keeps:
    """Writes output `index` only where `where(held)` says so of what the outputs held."""

    index: int
    where: object
    name: str = "keeps"

    def bind(self, params, inputs, outputs):
        def launch():
            held, old = [x.clone() for x in outputs], outputs[self.index].clone()
            Flash().bind(params, inputs, outputs)()
            if not self.where(held, outputs):
                outputs[self.index].copy_(old)

        return launch


@pytest.mark.parametrize(
    ("index", "where"),
    [
        (0, lambda held, new: held[1].isnan().any()),  # poison is recognised
        (1, lambda held, new: held[0].isnan().any()),
        (0, lambda held, new: not torch.equal(held[1], new[1])),  # or what is right already
        (1, lambda held, new: not torch.equal(held[0], new[0])),
    ],
    ids=["out-poison", "lse-poison", "out-right", "lse-right"],
)
def test_results_must_not_depend_on_what_the_outputs_held(index, where):
    kernel = Keeps(index, where)
    assert not failure(kernel)
    assert broken_properties(kernel, FULL) == {f"{RUNS} runs"}


def test_outputs_that_are_added_to_are_seen():
    """Right over zeros; here on poison it is not even finite."""

    def start(params, inputs, outputs):
        outputs[0].nan_to_num_(nan=0.0)
        start.held = outputs[0].clone()

    def add(params, inputs, outputs):
        outputs[0].add_(start.held)

    kernel = Flash(before=start, after=add)
    assert not failure(kernel)
    assert f"{RUNS} runs" in broken_properties(kernel, FULL)


def test_properties_catch_arithmetic_without_a_reference():
    assert broken_properties(Flash(round_p=toward_zero), FULL) == {"V=1 gives O=1"}
    late_keys_lost = Flash(skip=lambda keys: keys > 250)
    assert "keys permuted" in broken_properties(late_keys_lost, FULL)


# The seed and the machine


class Refuses(Flash):
    def bind(self, params, inputs, outputs):
        raise DeviceFault("no kernel for this shape")


class NotHere(Flash):
    def bind(self, params, inputs, outputs):
        raise Unavailable("not on this device")


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (None, "it did not build"),
        (Refuses("seed"), "no kernel for this shape"),
        (NotHere("seed"), "not on this device"),
        (out_is(lambda params, q, k, v: -q), "relative error of out is 4"),
        (lse_is(lambda lse: lse + 1), "error of lse is 1"),
        (sink(set_nan), "not finite"),
    ],
)
def test_what_the_seed_cannot_do_is_said_and_not_held_against_the_candidate(seed, why):
    (found,) = judge(Flash(round_p=fp8), seed=seed)
    assert not found.failure and found.worst == 0
    assert found.what.startswith("unsupported by the seed: ") and why[:20] in found.what


def test_a_fault_says_whose_launch_it_was():
    device = Here()

    @dataclass(frozen=True)
    class Crashes(Flash):
        def bind(self, params, inputs, outputs):
            return lambda: setattr(device, "fault", "illegal address")

    for candidate, seed in ((Crashes("candidate"), SEED), (Flash("candidate"), Crashes("seed"))):
        device.fault = ""
        with pytest.raises(ArmFault, match="on full: illegal address") as caught:
            check_point(device, REFERENCE, candidate, seed, FULL, ["normal"], random.Random(1))
        assert caught.value.arm == (candidate if seed is SEED else seed).name


def test_a_reference_that_contradicts_itself_judges_nobody():
    def other(params, inputs):
        return [x * 1.001 for x in REFERENCE.whole32(params, inputs)]

    with pytest.raises(ReferenceFault, match=r"two forms of out differ by 0\.001 on full"):
        judge(Flash(), reference=SimpleNamespace(**vars(LARGE) | {"whole32": other}))


def test_inputs_are_new_for_every_check_and_follow_the_generator():
    seen = []
    remember = Flash(before=lambda params, inputs, outputs: seen.append(inputs[0].clone()))
    for draw in (1, 1, 2):
        judge(remember, families=("normal", "normal"), draw=draw)
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[4])


def test_the_self_test_refuses_every_wrong_version():
    assert self_test(Here(), REFERENCE, SEED, FULL, random.Random(1)) == []


def test_the_self_test_tells_of_rules_that_let_something_pass():
    right = SimpleNamespace(**vars(REFERENCE) | {"WRONG": {"a right one": REFERENCE.whole32}})
    (line,) = self_test(Here(), right, SEED, FULL, random.Random(1))
    assert line == "a right one passed for a correct result on full"


def test_the_wrong_versions_are_refused_even_with_sampled_rows():
    for name, make in REFERENCE.WRONG.items():
        assert failure(WrongArm(name, make), CAUSAL, reference=LARGE), name


# Outputs of timed launches


def timed(kernel, where, draw=1):
    params, inputs = REFERENCE.case(where.params, "normal", draw, "cpu")
    outputs = [torch.empty(o.shape(params), dtype=getattr(torch, o.dtype)) for o in LARGE.OUTPUTS]
    kernel.bind(params, Inputs(inputs).tensors, outputs)()
    return params, inputs, outputs


@pytest.mark.parametrize("where", [FULL, CAUSAL, DEAD, ONE], ids=lambda p: p.name)
def test_quick_lets_an_honest_launch_pass(where):
    assert quick(REFERENCE, *timed(Flash(lazy=8.0), where), seed=3) == ""


@pytest.mark.parametrize(
    "kernel",
    [
        out_is(lambda params, q, k, v: q * 0),
        Flash(round_p=fp8),
        Flash(skip=lambda keys: keys % 256 == 255),
        sink(lambda params, inputs, outputs: outputs[0].fill_(torch.nan)),
        lse_is(lambda lse: lse + 0.01),
    ],
)
def test_quick_refuses_in_one_line(kernel):
    line = quick(REFERENCE, *timed(kernel, FULL), seed=3)
    assert line.startswith("error of ") and "\n" not in line


def test_quick_refuses_results_for_other_contents():
    params, inputs, _ = timed(Flash(), FULL, draw=1)
    stale = timed(Flash(), FULL, draw=2)[2]
    assert quick(REFERENCE, params, inputs, stale, seed=3)


def test_tiles_are_looked_at_one_by_one():
    """A single tile with FP8 errors hardly moves the whole."""
    honest, rough = Flash(), Flash(round_p=fp8)

    def change(params, inputs, outputs):
        worse, _ = rough.attention(params, *inputs)
        outputs[0][1, 128:256, 3] = worse[1, 128:256, 3].to(torch.bfloat16)

    assert failure(replace(honest, after=change)).startswith("error of tile 1 of out at (1, 3) is ")


# The same on a GPU


@pytest.fixture
def gpu():
    from avo_cute.measure.cuda import CudaDevice

    return CudaDevice(0)


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
WIDE = {"seqlen_q": 32768, "seqlen_k": 32768, "heads": 16, "kv_heads": 16, "head_dim": 128}


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("where", [FULL, CAUSAL, DEAD, ONE, DECODE], ids=lambda p: p.name)
def test_on_a_gpu_honest_arithmetic_passes_and_wrong_is_refused(gpu, where):
    arms = (Flash(tile=128, lazy=8.0), SEED)
    for reference in (REFERENCE, LARGE):
        found = check_point(gpu, reference, *arms, where, REFERENCE.FAMILIES, random.Random(1))
        found += check_properties(gpu, reference, *arms, where, random.Random(1))
        for one in found:
            assert not one.failure and "unsupported" not in one.what, one
    if where in (FULL, CAUSAL):
        assert self_test(gpu, REFERENCE, SEED, where, random.Random(1)) == []
    spoilt = sink(change_input)
    (found,) = check_point(gpu, REFERENCE, spoilt, SEED, where, ["normal"], random.Random(1))
    assert found.failure == "changed its inputs"


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("causal", [False, True])
def test_on_a_gpu_the_reference_of_32k_takes_a_second_and_little_memory(gpu, causal):
    if torch.cuda.get_device_properties(0).total_memory < 60e9:
        pytest.skip("needs a GPU with 60 GB")
    params = WIDE | {"batch": 1, "causal": causal}
    _, drawn = REFERENCE.case(params, "normal", 1, gpu.torch_device)
    REFERENCE.whole32(params | {"seqlen_q": 256}, (drawn[0][:, :256], *drawn[1:]))

    def seconds(act):
        gpu.synchronize()
        start = gpu.clock()
        result = act()
        gpu.synchronize()
        return gpu.clock() - start, result

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    took, whole = seconds(lambda: REFERENCE.whole32(params, drawn))
    results = sum(x.nbytes for x in whole)
    assert took < 1.0
    assert torch.cuda.max_memory_allocated() - before - results < 2**31
    took, sample = seconds(lambda: REFERENCE.sampled(params, drawn, 1, 2048))
    assert took < 1.0
    for exact, rough in zip(sample.expected, sample.pick(whole), strict=True):
        assert (exact - rough).norm() / exact.norm() < 1e-5
    outputs = (whole[0].to(torch.bfloat16), whole[1])
    for n in range(3):
        took, line = seconds(lambda n=n: quick(REFERENCE, params, drawn, outputs, seed=n))
        assert line == ""
    assert took < 4e-3
