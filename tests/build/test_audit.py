"""The audit's rules on instructions, launches and facts; red-team files hold the whole objects."""

from dataclasses import replace

import pytest

from avo_cute.build.audit import audit, signals, unchecked_descriptors
from avo_cute.build.elf import read_cubin, read_object
from avo_cute.build.launch import Scalar, Tensor, launches
from avo_cute.build.sass import Instruction, make_kernel
from avo_cute.records import Facts
from avo_cute.target import find_target
from avo_cute.task import AuditLimits

B200 = find_target("b200")
LIMITS = AuditLimits(
    matrix={
        "sm90": ("HGMMA.*.F32.BF16",),
        "sm100": ("UTCHMMA",),
        "sm120": ("HMMA.16816.F32.BF16",),
    }
)
VECTOR = Tensor((1000,), (1,), "float32")


def kernel(*instructions):
    """A kernel of ("OPCODE", "operands") pairs."""
    listed = [Instruction(16 * n, "", *pair) for n, pair in enumerate(instructions)]
    return make_kernel("k", [*listed, Instruction(16 * len(listed), "", "EXIT", "")])


@pytest.fixture(scope="session")
def judged(honest):
    """judged(kernels, launch changes, target) -> rules that the otherwise honest object breaks."""
    obj = read_object(honest)
    cubin = read_cubin(obj.cubin)
    (launch,) = launches(honest, [VECTOR, VECTOR, Scalar(1.0)], B200)

    def run(*kernels, target="b200", limits=LIMITS, arch=None, **changes):
        chosen = find_target(target)
        read = replace(cubin, arch=arch or chosen.arch)
        found = audit(obj, read, kernels, [replace(launch, **changes)], limits, chosen)
        return {v.rule: v.line for v in found}

    return run


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_an_honest_object_breaks_no_rule(tiny, judge_object, arch):
    target = {"sm_90a": "h200", "sm_100a": "b200"}[arch]
    assert judge_object(tiny[f"{arch}:honest"], target=target) == {}


def test_an_object_for_another_gpu_is_refused(tiny, judge_object):
    assert "arch" in judge_object(tiny["sm_90a:honest"], target="b200")


@pytest.mark.parametrize(
    ("target", "opcode"),
    [
        ("h200", "HGMMA.64x128x16.F32.BF16"),
        ("gb10", "HMMA.16816.F32.BF16"),
        ("b200", "FFMA"),
        ("b200", "HFMA2.MMA"),  # no matrix instruction, in spite of its name
    ],
)
def test_declared_matrix_instructions_pass(judged, target, opcode):
    assert judged(kernel((opcode, "R1, R2, R3")), target=target) == {}


@pytest.mark.parametrize(
    ("target", "opcode"),
    [
        ("h200", "HGMMA.64x128x16.F32"),  # fp16 in
        ("h200", "HGMMA.64x128x16.F16"),
        ("h200", "HGMMA.64x128x8.F32.TF32"),
        ("h200", "QGMMA.64x128x32.F32.E4M3.E4M3"),
        ("h200", "IGMMA.64x128x32.S8.S8"),
        ("h200", "BGMMA.64x128x256.AND.POPC"),
        ("h200", "HMMA.16816.F32"),
        ("b200", "UTCQMMA"),
        ("b200", "UTCQMMA.2CTA"),
        ("b200", "UTCIMMA"),
        ("b200", "UTCOMMA.4X"),
        ("b200", "DMMA.8x8x4"),
        ("gb10", "HMMA.16816.F32"),
        ("gb10", "QMMA.16832.F32.E4M3.E4M3"),
        ("gb10", "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"),
    ],
)
def test_other_matrix_instructions_are_refused(judged, target, opcode):
    line = judged(kernel((opcode, "R1, R2, R3")), target=target)["matrix"]
    assert opcode in line


def tcgen05(idesc):
    return kernel(
        ("UMOV", f"UR39, {idesc}" if idesc else "UR38, 0x0"),
        (
            "UTCHMMA",
            "gdesc[UR20], gdesc[UR10], tmem[UR46], tmem[UR38], idesc[UR39], !UPT",
        ),
    )


def test_a_bf16_descriptor_passes(judged):
    assert judged(tcgen05("0x8200490")) == {}
    assert unchecked_descriptors([tcgen05("0x8200490")]) == ()


@pytest.mark.parametrize(
    ("idesc", "what"),
    [("0x8200010", "fp16"), ("0x8200910", "tf32"), ("0x8200480", "fp16 out")],
)
def test_another_descriptor_is_refused(judged, idesc, what):
    assert idesc in judged(tcgen05(idesc))["matrix"], what


def test_a_descriptor_from_elsewhere_is_a_signal_only(judged):
    assert judged(tcgen05(None)) == {}
    (line,) = unchecked_descriptors([tcgen05(None)])
    assert "UTCHMMA at 0x10" in line


@pytest.mark.parametrize(
    "instruction",
    [
        ("CS2R", "R4, SR_CLOCKLO"),
        ("CS2R.32", "R4, SR_CLOCKHI"),
        ("S2UR", "UR6, SR_GLOBALTIMERLO"),
        ("S2R", "R6, SR_GLOBALTIMERHI"),
        ("S2R", "R6, SR_PM0"),
    ],
)
def test_clock_reads_are_refused(judged, instruction):
    assert instruction[1].split()[1] in judged(kernel(instruction))["clock"]


def test_other_special_registers_pass(judged):
    reads = [("S2R", f"R1, {r}") for r in ("SR_TID.X", "SR_CTAID.Y", "SR_LANEID", "SR_CgaCtaId")]
    assert judged(kernel(*reads, ("CS2R", "R2, SRZ"))) == {}


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("shared-memory", {"smem_bytes": 227 * 1024 + 1}),
        ("block", {"block": (1024, 2, 1)}),
        ("block", {"block": (64, 1, 1)}),  # the kernel demands 128
        ("grid", {"grid": (0, 1, 1)}),
        ("grid", {"grid": (3, 1, 1), "cluster": (2, 1, 1)}),
        ("pdl", {"pdl": True, "attributes": (6,)}),
        ("launch", {"attributes": (2,)}),  # cooperative
        ("launch", {"kernel": "another"}),
    ],
)
def test_launches_that_do_not_fit_are_refused(judged, rule, changes):
    assert set(judged(**changes)) == {rule}


def test_the_limit_of_shared_memory_itself_passes(judged):
    assert judged(smem_bytes=227 * 1024) == {}
    assert set(judged(smem_bytes=99 * 1024 + 1, target="gb10")) == {"shared-memory"}


def test_pdl_passes_where_the_task_allows_it(judged):
    allowed = LIMITS.model_copy(update={"pdl": True})
    assert judged(limits=allowed, pdl=True, attributes=(6,)) == {}


def test_signals_name_what_went_missing():
    before = Facts(
        *("sm_100a", "", ("k",), 128, (), 0, 0, 0, 0, 512),
        barrier_waits=20,
        fences=6,
        instructions=1000,
        mix={},
    )
    after = replace(before, barrier_waits=19, fences=5, spill_stores=3)
    assert signals(before, before) == ()
    assert [s.split(":")[0] for s in signals(after, before)] == [
        "fewer barrier waits than the incumbent",
        "fewer fences than the incumbent",
        "spills",
    ]
