"""Facts: counts from SASS, sizes from the cubin's own notes."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from avo_cute.build.elf import read_object
from avo_cute.build.facts import facts, register_roles, tmem_columns_of
from avo_cute.build.sass import disassemble, parse
from avo_cute.build.units import UNITS, unit_of

ROLES = """
.text.roles:
        /*0000*/                   UMOV UR6, 0x10 ;
        /*0010*/                   UTCATOMSWS.FIND_AND_SET.ALIGN UP0, UR4, UR6 ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/                   USETMAXREG.DEALLOC.CTAPOOL 0x38 ;
        /*0040*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x10], R4 ;
        /*0050*/                   EXIT ;
.L_x_1:
        /*0060*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xc0 ;
        /*0070*/                   LDL.LU R4, [R1+0x8] ;
        /*0080*/                   MUFU.EX2 R4, R4 ;
        /*0090*/                   STL [R1+0x8], R4 ;
        /*00a0*/                   STL.64 [R1+0x10], R4 ;
        /*00b0*/                   BAR.SYNC.DEFER_BLOCKING 0x1, 0x80 ;
        /*00c0*/                   BAR.ARV 0x2, 0x80 ;
        /*00d0*/                   FENCE.VIEW.ASYNC.S ;
        /*00e0*/                   MEMBAR.ALL.CTA ;
        /*00f0*/                   USETMAXREG.DEALLOC.CTAPOOL 0x38 ;
        /*0100*/                   EXIT ;
"""


@pytest.fixture(scope="module")
def cubin(tmp_path_factory):
    """The tiny kernel for sm_90a."""
    out = tmp_path_factory.mktemp("tiny")
    script = Path(__file__).with_name("tiny_kernel.py")
    subprocess.run([sys.executable, str(script), str(out), "sm_90a:honest"], check=True, cwd=out)
    return read_object((out / "sm_90a-honest.o").read_bytes()).cubin


def test_facts_of_a_real_cubin(cubin):
    kernels = disassemble(cubin)
    found = facts(cubin, kernels)
    assert found.cubin_sha256 == hashlib.sha256(cubin).hexdigest()
    assert found.arch.startswith("sm_90")
    assert found.kernels == tuple(k.name for k in kernels)
    assert 8 <= found.registers <= 64
    assert found.spill_loads == found.spill_stores == found.local_bytes == 0
    assert found.register_roles == () and found.tmem_columns == 0
    assert sum(found.mix.values()) == found.instructions == len(kernels[0].instructions)
    assert set(found.mix) <= set(UNITS)
    assert found.mix["global"] == 2  # y = 2 x: one load, one store


def test_counts_of_a_warp_specialised_kernel(cubin):
    found = facts(cubin, parse(ROLES))
    assert (found.spill_loads, found.spill_stores) == (1, 2)
    assert found.barrier_waits == 2  # an arrival waits for nobody
    assert found.fences == 2
    assert found.register_roles == (0x38, 0xC0)
    assert found.tmem_columns == 512
    assert found.mix["local"] == 3 and found.mix["mufu"] == 1


def test_tensor_memory_of_unknown_size_counts_as_none():
    (kernel,) = parse(ROLES.replace("UMOV UR6, 0x10", "LDCU UR6, c[0x0][0x380]"))
    assert tmem_columns_of(kernel) == 0


def test_register_budget_that_is_no_immediate_counts_as_zero():
    (kernel,) = parse(ROLES.replace("0xc0", "UR7"))
    assert register_roles(kernel.instructions) == (0x38, 0)


@pytest.mark.parametrize(
    ("opcode", "unit"),
    [
        ("HGMMA.64x128x16.F32.BF16", "tensor"),
        ("UTCHMMA.2CTA", "tensor"),
        ("UTCQMMA", "tensor"),
        ("HMMA.16816.F32.BF16", "tensor"),
        ("LDTM.x32", "tmem"),
        ("MUFU.EX2", "mufu"),
        ("FFMA2.FTZ", "fma"),
        ("FMNMX3", "alu"),
        ("STSM.16.M88.4", "shared"),
        ("LDL.LU", "local"),
        ("LDGSTS.E.BYPASS.128", "global"),
        ("UTMALDG.4D.2CTA", "tma"),
        ("UTCBAR", "other"),
        ("UIADD3", "uniform"),
        ("BRA.U", "branch"),
        ("WARPGROUP.DEPBAR.LE", "other"),
        ("NEVERSEEN.X", "other"),
    ],
)
def test_unit_of_an_opcode(opcode, unit):
    (kernel,) = parse(f".text.k:\n        /*0000*/   {opcode} R1, R2 ;\n")
    assert unit_of(kernel.instructions[0]) == unit
