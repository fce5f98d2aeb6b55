"""The static score on small hand-written kernels: every term moves the way physics says."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avo_cute.build.matrix import descriptor_shape, matrix_of
from avo_cute.build.roles import role_streams
from avo_cute.build.sass import parse
from avo_cute.estimate import Work, ctas_per_sm, estimate
from avo_cute.records import Launch, Workload
from avo_cute.target import find_target

WORKLOAD = Workload("w", "c", (), {})
WORK = Work(flops=1e12, bytes=1e8)
LENGTHS = (4096, 8192, 16384, 32768)
H200, B200, B300 = (find_target(name) for name in ("h200", "b200", "b300"))


def kernel(lines, name="k"):
    """Assemble lines: `label:` or `[@P0] OPCODE operands`; targets are labels."""
    out, address = [f".text.{name}:"], 0
    for line in lines:
        if line.endswith(":"):
            out.append(f".L_{line}")
            continue
        out.append(f"        /*{address:04x}*/  {line} ;")
        address += 16
    return parse("\n".join(out))[0]


def launch(ctas=132 * 40, threads=384, smem=200_000, name="k"):
    return Launch(name, (ctas, 1, 1), (threads, 1, 1), (1, 1, 1), smem, False)


def hopper(body=(), wait="gsb0, 0x0", n=128):
    """A warpgroup loop: eight matrix instructions, a wait, then `body`."""
    group = [f"HGMMA.64x{n}x16.F32.BF16 R24, gdesc[UR16], R24"] * 7
    return [
        "MOV R1, RZ",
        "loop:",
        *group,
        f"HGMMA.64x{n}x16.F32.BF16 R24, gdesc[UR16], R24, gsb0",
        f"WARPGROUP.DEPBAR.LE {wait}",
        *body,
        "@P0 BRA `(.L_loop)",
        "EXIT",
    ]


def cycles(lines, target=H200, work=WORK, **launched):
    return estimate(WORKLOAD, [kernel(lines)], [launch(**launched)], target, work)


SOFTMAX = ["FMNMX R2, R3, R4, !PT"] * 64 + ["FFMA R5, R6, R7, R8"] * 64 + ["MUFU.EX2 R5, R5"] * 64


def test_tensor_cycles_are_work_over_rate():
    found = cycles(hopper())
    assert found.workload == "w"
    assert found.parts["tensor"] == pytest.approx(WORK.flops / 2 / 2048 / H200.sms)
    assert found.cycles >= found.parts[found.bound] == max(found.parts.values())


def test_cycles_are_proportional_to_the_work():
    one, two = (cycles(hopper(SOFTMAX), work=Work(f * 1e12, 0.0)) for f in (1, 2))
    assert two.cycles == pytest.approx(2 * one.cycles)


def test_spills_cost():
    plain = cycles(hopper(SOFTMAX)).cycles
    spilled = cycles(hopper([*SOFTMAX, *["STL [R1], R5", "LDL R5, [R1]"] * 30])).cycles
    assert spilled > 1.15 * plain


def test_waiting_for_every_matrix_instruction_costs():
    one = hopper(SOFTMAX)
    group = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR16], R24"
    serial = []
    for line in one:
        serial += [line + ", gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x0"] if line == group else [line]
    assert cycles(serial).cycles > 1.1 * cycles(one).cycles


def test_overlap_of_matrix_and_exponentials_pays():
    """With one group in flight (0x1) the softmax runs beside the tensor core."""
    assert cycles(hopper(SOFTMAX, "gsb0, 0x1")).cycles < 0.95 * cycles(hopper(SOFTMAX)).cycles


def test_a_turn_that_waits_for_the_matrix_is_exclusive():
    body = ["BAR.SYNC R4, 0x100"]
    inside = hopper(SOFTMAX)
    inside.insert(inside.index("loop:") + 1, *body)
    held = list(inside)
    wait = held.index("WARPGROUP.DEPBAR.LE gsb0, 0x0")
    held.insert(wait + 1, "BAR.ARV R4, 0x100")
    inside.insert(wait, "BAR.ARV R4, 0x100")
    free, kept = (cycles(x, threads=512) for x in (inside, held))
    assert kept.parts["order"] > free.parts["order"]
    assert kept.cycles >= free.cycles


def test_exponentials_moved_to_the_fma_pipe():
    """Emulating a quarter of the exponentials by six multiply-adds each."""
    emulated = SOFTMAX[:-16] + ["FFMA R5, R6, R7, R8"] * 96
    before, after = cycles(hopper(SOFTMAX)), cycles(hopper(emulated))
    assert after.parts["mufu"] == pytest.approx(before.parts["mufu"] * 0.75)
    assert after.parts["fma"] > before.parts["fma"]


def test_blackwell_ultra_has_twice_the_exponentials():
    on = {t.name: cycles(blackwell(), t, threads=512).parts for t in (B200, B300)}
    assert on["b300"]["mufu"] == pytest.approx(on["b200"]["mufu"] / 2)
    assert on["b300"]["fma"] == on["b200"]["fma"]


def test_more_warpgroups_hide_more():
    """Two consumer warpgroups do twice the work of one in less than twice the time."""
    lines = [
        "@P1 BRA `(.L_work)",
        "USETMAXREG.DEALLOC.CTAPOOL 0x18",
        "EXIT",
        "work:",
        "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0",
        *hopper(SOFTMAX),
    ]
    one, two = (cycles(lines, threads=t).cycles for t in (256, 384))
    assert two < 0.85 * one


def test_registers_tell_how_many_warps_a_role_has():
    budgets = [f"USETMAXREG.DEALLOC.CTAPOOL {hex(b)}" for b in (56, 192, 72)]
    found = role_streams(kernel([*budgets, "EXIT"]), launch(threads=512))
    assert found == {None: 4.0, 56: 1.0, 192: 2.0, 72: 1.0}
    assert role_streams(kernel(["EXIT"]), launch(threads=96)) == {None: 0.75}


def test_the_last_wave_counts_whole():
    full, spill_over = (cycles(hopper(), ctas=c, work=Work(c * 1e9, 0)) for c in (1320, 1321))
    assert spill_over.cycles == pytest.approx(full.cycles * 11 / 10)


def test_resident_ctas():
    lines = ["FFMA R120, R1, R2, R3", "EXIT"]
    assert ctas_per_sm(kernel(lines), launch(threads=128, smem=0), H200) == 4  # registers
    assert ctas_per_sm(kernel(lines), launch(threads=128, smem=100_000), H200) == 2
    assert ctas_per_sm(kernel(lines), launch(threads=1024, smem=300_000), H200) == 1


EXTRA = [
    *("FFMA R5, R5, R7, R8", "MUFU.EX2 R9, R5", "FMNMX R2, R3, R4, !PT", "STS.128 [R4], R8"),
    *("LDL R5, [R1]", "STL [R1], R5", "SHFL.BFLY PT, R4, R13, 0x2, 0x1f", "FROB R1, R2"),
    *("BAR.SYNC.DEFER_BLOCKING R4, 0x100", "UIADD3 UR4, UR4, 0x1, URZ", "MOV R5, 0x1"),
    *("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R4", "WARPGROUP.DEPBAR.LE gsb0, 0x0"),
    *("FENCE.VIEW.ASYNC.S", "LDG.E.128 R8, [R2]", "F2FP.BF16.F32.PACK_AB R4, R5, R6"),
]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(EXTRA), max_size=12),
    st.lists(st.tuples(st.integers(0, 1000), st.sampled_from(EXTRA)), min_size=1, max_size=6),
)
def test_more_instructions_never_take_less_time(body, added):
    lines = hopper([*SOFTMAX[::9], *body], "gsb0, 0x1")
    longer = list(lines)
    first, last = longer.index("loop:") + 1, longer.index("@P0 BRA `(.L_loop)")
    for position, line in added:
        longer.insert(first + position % (last - first + 1), line)
    before, after = cycles(lines), cycles(longer)
    assert after.cycles >= before.cycles * (1 - 1e-12)
    assert all(after.parts[u] >= c * (1 - 1e-12) for u, c in before.parts.items())


BF16_128x128, BF16_256x128, BF16_64x64 = 0x08200490, 0x10200490, 0x04100490


def test_shapes_in_instruction_descriptors():
    assert descriptor_shape(BF16_128x128) == (128, 128)
    assert descriptor_shape(BF16_256x128) == (256, 128)
    assert descriptor_shape(BF16_64x64) == (64, 64)


@pytest.mark.parametrize(
    "definition",
    [
        ["UMOV UR61, 0x8200490"],
        ["UMOV UR5, 0x8200490", "UMOV UR61, UR5"],
        ["MOV R7, 0x8200490", "UMOV UR61, 0x1", "R2UR UR61, R7"],
        ["IMAD.MOV.U32 R7, RZ, RZ, 0x8200490", "NOP", "R2UR UR61, R7"],
        ["HFMA2 R7, -RZ, RZ, 0.000125885009765625, 6.961822509765625e-05", "R2UR UR61, R7"],
        ["UMOV UR61, 0x8200490", "@P0 BRA `(.L_over)", "FFMA R1, R2, R3, R4", "over:"],
    ],
)
def test_descriptors_are_followed_to_their_immediate(definition):
    mma = "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR60], idesc[UR61], !UPT"
    k = kernel([*definition, mma])
    last = len(k.instructions) - 1
    m = matrix_of(k, len(k.blocks) - 1, last)
    assert (m.m, m.n, m.k, m.ctas, m.fresh) == (128, 128, 16, 1, True)


def test_an_unknown_descriptor_counts_as_the_common_tile():
    k = kernel(["UTCHMMA.2CTA tmem[UR4], gdesc[UR6], tmem[UR8], tmem[UR60], idesc[UR61], UP0"])
    m = matrix_of(k, 0, 0)
    assert (m.m, m.n, m.ctas, m.fresh, m.carried, m.a_in_shared) == (
        256,
        128,
        2,
        False,
        True,
        False,
    )


def blackwell(softmax=SOFTMAX, idesc=BF16_128x128, cta="", rescale=()):
    """MMA warp, softmax and correction as concurrent roles, one S tile each step and warpgroup."""
    mma = f"UTCHMMA{cta} {{a}}, gdesc[UR6], tmem[UR8], tmem[UR60], idesc[UR61], {{flag}}"

    def product(a, flag):
        return [mma.format(a=a, flag=flag), *[mma.format(a=a, flag="UPT")] * 7]

    return [
        f"UMOV UR61, {hex(idesc)}",
        "@P1 BRA `(.L_soft)",
        "@P2 BRA `(.L_corr)",
        "USETMAXREG.DEALLOC.CTAPOOL 0x38",
        "mma:",
        *product("gdesc[UR4]", "!UPT") * 2,
        *product("tmem[UR4]", "UP0") * 2,
        "@P0 BRA `(.L_mma)",
        "EXIT",
        "soft:",
        "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xc0",
        "step:",
        *["LDTM.x32 R4, tmem[UR4]"] * 4,
        *softmax,
        *["STTM.x16 tmem[UR5], R4"] * 4,
        "@P0 BRA `(.L_step)",
        "EXIT",
        "corr:",
        "USETMAXREG.DEALLOC.CTAPOOL 0x48",
        "wait:",
        "BAR.SYNC 0x3, 0x40",
        "@P3 BRA `(.L_next)",
        *rescale,
        "next:",
        "@P0 BRA `(.L_wait)",
        "EXIT",
    ]


def test_roles_of_blackwell_run_side_by_side():
    found = cycles(blackwell(), B200, threads=512)
    step = 4 * 128 * 128 * 128  # multiply-adds: two S and two P.V tiles
    steps = WORK.flops / 2 / step / B200.sms
    assert found.parts["tensor"] == pytest.approx(steps * step / 4096)
    assert found.parts["mufu"] == pytest.approx(steps * 2 * 64 * 8)  # two softmax warpgroups
    assert found.cycles < sum(found.parts.values())


def test_two_ctas_share_one_product():
    one = cycles(blackwell(), B200, threads=512)
    two = cycles(blackwell(idesc=BF16_256x128, cta=".2CTA"), B200, threads=512)
    assert two.parts["tensor"] == pytest.approx(one.parts["tensor"])
    assert two.parts["shared"] < one.parts["shared"]  # each CTA reads half of B


def test_half_the_rows_waste_half_the_tensor_core():
    full, half = (cycles(blackwell(idesc=d), B200, threads=512) for d in (BF16_128x128, 0x04200490))
    assert half.parts["tensor"] == pytest.approx(2 * full.parts["tensor"])


def test_an_epilogue_loop_is_no_part_of_the_steps():
    """A GEMM accumulates over its steps; what reads the result afterwards does not slow them."""
    gemm = [line.replace("!UPT", "UP0") for line in blackwell()]
    found = cycles(gemm, B200, threads=512)
    assert "mufu" not in found.parts
    assert found.cycles == pytest.approx(found.parts["tensor"], rel=0.02)


def test_the_cheaper_of_two_softmax_loops_is_the_steady_one():
    masked = blackwell([*SOFTMAX, *["FSEL R2, R3, R4, P0"] * 128])
    at = masked.index("EXIT", masked.index("step:"))
    plain = ["plain:", *["LDTM.x32 R4, tmem[UR4]"] * 4, *SOFTMAX, "@P0 BRA `(.L_plain)"]
    both = masked[:at] + plain + masked[at:]
    parts = [cycles(x, B200, threads=512).parts for x in (masked, both, blackwell())]
    assert parts[1]["alu"] == pytest.approx(parts[2]["alu"], rel=0.01)
    assert parts[1]["alu"] < parts[0]["alu"]


def test_conditional_rescaling_counts_half():
    move = ["LDTM.x16 R20, tmem[UR4]", "FMUL2 R20, R20, R2", "STTM.x16 tmem[UR4], R20"] * 16
    branchy = cycles(blackwell(rescale=move), B200, threads=512)
    always = [line for line in blackwell(rescale=move) if "L_next" not in line]
    both = cycles(always, B200, threads=512)
    none = cycles(blackwell(), B200, threads=512)
    added = [x.parts["tmem"] - none.parts["tmem"] for x in (branchy, both)]
    assert added[0] == pytest.approx(added[1] / 2) and added[0] > 0


def rowwise(extra=()):
    body = ["LDG.E.128 R4, [R2]", *["FFMA R5, R5, R6, R7"] * 4, *extra, "STG.E.128 [R2], R4"]
    return ["MOV R1, RZ", "loop:", *body, "@P0 BRA `(.L_loop)", "EXIT"]


def test_without_matrices_bytes_are_the_work():
    found = cycles(rowwise(), work=Work(0.0, 1e9), threads=256, smem=0)
    assert found.bound == "global"
    assert found.parts["global"] == pytest.approx(1e9 / H200.sms / 20.7, rel=0.01)
    slow = cycles(rowwise(["MUFU.EX2 R5, R5"] * 400), work=Work(0.0, 1e9), threads=256, smem=0)
    assert slow.bound == "mufu" and slow.cycles > found.cycles


def test_code_without_loops_runs_once_per_cta():
    lines = ["MUFU.EX2 R5, R5"] * 100 + ["EXIT"]
    one, two = (cycles(lines, ctas=c, work=Work(0, 1.0), threads=128, smem=0) for c in (1e5, 2e5))
    assert two.parts["mufu"] == pytest.approx(2 * one.parts["mufu"])
    assert one.parts["mufu"] == pytest.approx(1e5 / H200.sms * 800)


def test_launches_add_up_and_must_be_known():
    twice = [launch(), launch()]
    both = estimate(WORKLOAD, [kernel(hopper())], twice, H200, WORK)
    assert both.cycles == pytest.approx(cycles(hopper()).cycles)  # each does half of the work
    with pytest.raises(ValueError, match="unknown kernel 'other'"):
        estimate(WORKLOAD, [kernel(hopper())], [replace(launch(), kernel="other")], H200, WORK)


@pytest.mark.slow
def test_real_variants_are_ranked_as_they_were_timed(tmp_path):
    """Three tilings of FA4 on Hopper: the default, one warpgroup less, and one that spills."""
    gains = {(128, 128, True): 0.0, (64, 64, True): -49.0, (192, 160, False): -90.0}
    variants = [
        {"tm": m, "tn": n, "ov": ov, "rs": True} | {f"gain{s}": g for s in LENGTHS}
        for (m, n, ov), g in gains.items()
    ]
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps({"variants": variants}))
    script = Path(__file__).parent.parent / "benchmarks" / "static_model.py"
    command = [sys.executable, str(script), str(measured), "--cache", str(tmp_path), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("all") and lines[1].endswith("mean 1.000")
    assert [line.endswith("spills") for line in lines[-3:]] == [False, False, True]
