"""The audit's rules on instructions, launches and facts; red-team files hold the whole objects."""

import re
from dataclasses import replace

import pytest

from avo_cute.build.audit import audit, signals, unchecked_descriptors
from avo_cute.build.budgets import registers_asked
from avo_cute.build.elf import read_cubin, read_object
from avo_cute.build.launch import Scalar, Tensor, launches
from avo_cute.build.sass import Instruction, make_kernel
from avo_cute.records import Facts, Launch
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
        ("launch", {"grid": (64, 1, 1), "cluster": (32, 1, 1)}),
        ("launch", {"grid": (64, 64, 1), "cluster": (8, 4, 1)}),
        ("launch", {"grid": (64, 1, 1), "cluster": (16, 1, 1), "target": "gb10"}),
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


@pytest.mark.parametrize("cluster", [(16, 1, 1), (2, 2, 2)])
def test_the_largest_cluster_itself_passes(judged, cluster):
    assert judged(grid=(64, 64, 64), cluster=cluster) == {}


ROLES = """
0 S2R R0, SR_TID.X
1 SHF.R.U32.HI R1, RZ, 0x5, R0
2 ISETP.GT.AND P0, PT, R1, 0x3, PT
3 BAR.SYNC 0x0
4 @P0 BRA 0x80
5 USETMAXREG.DEALLOC.CTAPOOL {producer}
6 LDC R1, c[0x0][0x210]
7 EXIT
8 USETMAXREG.TRY_ALLOC.CTAPOOL UP0, {consumer}
9 BRA.U !UP0, 0x80
10 EXIT
"""


def roles(producer, consumer, changes=None):
    """Four warps that set one budget, and any number of others."""
    lines = dict(line.split(" ", 1) for line in ROLES.strip().splitlines()) | (changes or {})
    listed = []
    for number, text in lines.items():
        guard = re.match(r"(@\S+) ", text)
        opcode, _, operands = text.removeprefix(guard[0] if guard else "").partition(" ")
        operands = operands.format(producer=producer, consumer=consumer)
        address = 16 * int(number)
        listed.append(Instruction(address, guard[1] if guard else "", opcode, operands))
    return make_kernel("k", listed)


WARPGROUPS = Launch("k", (1, 1, 1), (384, 1, 1), (1, 1, 1), 0, False)


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, 128 * (24 + 2 * 240)),
        ({"1": "MOV R1, R0"}, 32 * 24 + 11 * 32 * 240),  # the thread's number, not the warp's
        ({"1": "LDG.E R1, desc[UR4][R2.64]"}, 384 * 24),  # nobody knows which way: the smaller one
        ({"2": "@P3 ISETP.GT.AND P0, PT, R1, 0x3, PT"}, 384 * 24),
        ({"3": "STRANGE R9, R8"}, 384 * 24),  # may have written anything
        ({"3": "IADD3 R9, PT, PT, R9, R8, RZ"}, 128 * (24 + 2 * 240)),
        ({"3": "ISETP.NE.AND P0, PT, R8, RZ, PT"}, 384 * 24),
        ({"3": "@P3 EXIT"}, 0),  # a warp that may leave asks for nothing
        ({"3": "PLOP3.LUT P0, PT, PT, PT, !P0, 0x80, 0x0"}, 128 * (2 * 24 + 240)),
        ({"2": "UISETP.NE.U32.AND UP0, UPT, UR9, 0x8, UPT", "4": "BRA.U UP0, 0x80"}, 384 * 24),
    ],
    ids=str,
)
def test_registers_are_counted_where_it_is_certain_which_warp_asks(changes, asked):
    assert registers_asked(roles("0x18", "0xf0", changes), WARPGROUPS) == asked
    assert registers_asked(kernel(("FFMA", "R1, R2, R3")), WARPGROUPS) == 0


@pytest.mark.parametrize(
    ("registers", "block", "line"),
    [
        (168, (384, 1, 1), ""),  # 24 + 2 x 240 are 3 x 168
        (161, (384, 1, 1), ""),  # given in steps of 8
        (160, (384, 1, 1), "64512 registers in all and have 61440"),
        (120, (256, 2, 1), "67584 registers in all and have 61440"),  # by threadIdx.x
        (256, (384, 1, 1), "needs 98304 registers"),
        (64, (1024, 1, 1), "ask for"),
        (72, (1024, 1, 1), "needs 73728 registers"),
    ],
)
def test_warps_must_not_wait_for_registers_that_the_block_never_has(honest, registers, block, line):
    obj = read_object(honest)
    cubin = read_cubin(obj.cubin)
    sized = replace(cubin.kernels[0], name="k", registers=registers, block=block)
    launch = replace(WARPGROUPS, block=block)
    found = audit(
        obj, replace(cubin, kernels=(sized,)), [roles("0x18", "0xf0")], [launch], LIMITS, B200
    )
    assert [v.rule for v in found] == ["registers"] * bool(line)
    assert line in "".join(v.line for v in found)


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
