"""Which unit of an SM executes an instruction, and how fast: the table behind the static score.

Costs are in cycles for a *stream*: four warps, one on each sub-partition of an SM (a warpgroup, or
any four warps that run the same code). Each sub-partition issues one warp-instruction a cycle.

Sources. [PG] CUDA C++ Programming Guide, table "throughput of native arithmetic instructions"
(results per clock per SM, compute capability 9.0 and 10.0). [H] NVIDIA H100 whitepaper: 989.4
dense BF16 TFLOPS, 132 SMs, 1.83 GHz. [B] NVIDIA Blackwell architecture brief: 2.25 dense BF16
PFLOPS of a B200, 148 SMs, 1.85 GHz. [BU] NVIDIA on Blackwell Ultra: twice the exponentials a clock
of Blackwell. Bandwidths of device memory are the data sheets'. Entries without a source are
estimates and say from what.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..records import Target
from .sass import Instruction

UNITS = (
    *("tensor", "tmem", "mufu", "fma", "alu", "shared", "local", "global"),
    *("tma", "uniform", "branch", "other"),
)
SHARED_BYTES = 128  # of shared memory per clock per SM: 32 banks of 4 bytes [PG]
STREAM_LANES = 128
LOCAL_CYCLES = 20.0  # per LDL/STL of a stream; see `local memory` in docs/static-score.md


@dataclass(frozen=True, slots=True)
class Rates:
    """Cycles per warp-instruction on a sub-partition's pipe, and rates of the whole SM."""

    mufu: float
    fma: float  # FFMA, FMUL, FADD
    packed: float  # FFMA2 and its like: two operations per lane
    imad: float
    alu: float
    matrix_fma: float  # 16-bit multiply-adds per clock per SM, asynchronous instructions
    legacy_fma: float  # likewise of warp-level HMMA
    dram: float  # bytes of device memory per clock per SM


# [PG] FP32 128, MUFU 16, IMAD 64, compare/logic/shift/convert 64 per clock per SM. [H] and [B] give
# 989.4e12 / (132 x 1.83e9) / 2 = 2048 and 2.25e15 / (148 x 1.85e9) / 2 = 4110, that is 4096
# multiply-adds. `packed` keeps the 128 lanes of FP32: FFMA2 saves issue slots, not pipe cycles.
# `legacy_fma` of 9.0 and 10.0: estimated from A100, whose HMMA does 1024 per SM. Device memory:
# H200 4.8 TB/s at 1.755 GHz, B200 and B300 8 TB/s at 1.85 GHz.
_RATES = {
    "sm90": Rates(8.0, 1.0, 2.0, 2.0, 2.0, 2048, 1024, 20.7),
    "sm100": Rates(8.0, 1.0, 2.0, 2.0, 2.0, 4096, 1024, 29.2),
    # Coarse. GB10: 1 PFLOPS sparse FP4 on 48 SMs at about 2.5 GHz is 512 dense 16-bit
    # multiply-adds; 273 GB/s.
    "sm120": Rates(8.0, 1.0, 2.0, 2.0, 2.0, 512, 512, 2.3),
}
_BLACKWELL_ULTRA_MUFU = 4.0  # [BU]


def rates_of(target: Target) -> Rates:
    """The rates of a target; unknown families count as the newest data-centre part."""
    rates = _RATES.get(target.family, _RATES["sm100"])
    if target.arch.startswith("sm_103"):
        return replace(rates, mufu=_BLACKWELL_ULTRA_MUFU)
    return rates


def unit_of(i: Instruction) -> str:
    """The unit that executes an instruction, one of `UNITS`."""
    if unit := _BY_NAME.get(i.name):
        return unit
    return next((unit for pattern, unit in _BY_PATTERN if pattern.match(i.name)), "other")


def pipe_cycles(i: Instruction, rates: Rates) -> float:
    """Cycles for which one stream occupies the instruction's unit; tensor work is counted apart."""
    unit = unit_of(i)
    if unit == "mufu":
        return rates.mufu
    if unit == "fma":
        return _fma_cycles(i.name, rates)
    if unit == "alu":
        return rates.alu
    if unit == "shared":
        return _shared_words(i) * 4 * STREAM_LANES / SHARED_BYTES
    if unit == "tmem":
        return float(tmem_columns(i))
    if unit == "local":
        return LOCAL_CYCLES
    return 0.0 if unit == "tensor" else 1.0


def tmem_columns(i: Instruction) -> int:
    """Columns of tensor memory that LDTM or STTM moves for each of its lanes.

    One 32-bit column a clock per lane is an estimate from the width of the register file's port.
    """
    found = re.search(r"\.x(\d+)", i.opcode)
    return int(found.group(1)) if found else 1


def global_bytes(i: Instruction) -> int:
    """Bytes of device memory that one thread's load or store moves, 0 for anything else."""
    if unit_of(i) != "global" or i.name in ("CCTL", "LDGDEPBAR"):
        return 0
    return _width(i)


def _shared_words(i: Instruction) -> float:
    if i.name in ("LDSM", "STSM"):
        found = re.search(r"\.(\d)$", i.opcode)
        return float(found.group(1)) if found else 1.0
    return max(1.0, _width(i) / 4)  # shuffles and atomics move one word a lane [PG: 32 a clock]


def _width(i: Instruction) -> int:
    found = re.search(r"\.(64|128|256|[US]?8|[US]?16)(?=\.|$)", i.opcode)
    return int(found.group(1).lstrip("US")) // 8 if found else 4


def _fma_cycles(name: str, rates: Rates) -> float:
    if name in ("FFMA2", "FMUL2", "FADD2"):
        return rates.packed
    return rates.imad if name.startswith("I") else rates.fma


_GROUPS = {
    "tensor": "HMMA IMMA QMMA OMMA DMMA BMMA HGMMA QGMMA IGMMA BGMMA",
    "tmem": "LDTM STTM LDT STT",
    "mufu": "MUFU",
    "fma": "FFMA FMUL FADD FFMA2 FMUL2 FADD2 FFMA32I FMUL32I FADD32I IMAD IMUL IDP "
    "HFMA2 HMUL2 HADD2",
    "shared": "LDS STS LDSM STSM ATOMS SHFL STAS REDAS",
    "local": "LDL STL",
    "global": "LDG STG LDGSTS LD ST RED REDG ATOM ATOMG CCTL LDGDEPBAR",
    "branch": "BRA BRX JMP JMX CALL RET EXIT BSSY BSYNC BREAK WARPSYNC KILL BPT",
    "uniform": "R2UR S2UR LDCU VOTEU",
    "alu": "FMNMX FMNMX3 FSEL FSETP FSET FCHK LOP3 LOP SHF SHL SHR IADD3 IADD VIADD VIADDMNMX "
    "VIMNMX VIMNMX3 IMNMX IABS PRMT SEL ISETP F2FP F2F F2I I2F I2FP MOV LEA R2P P2R PLOP3 BMSK "
    "SGXT FLO POPC VOTE LOP32I MOV32I RPCMOV HMNMX2 HSETP2 HSET2 CS2R VHMNMX",
    "other": "WARPGROUP SYNCS BAR FENCE MEMBAR DEPBAR NOP NANOSLEEP ELECT USETMAXREG",
}
_BY_NAME = {name: unit for unit, names in _GROUPS.items() for name in names.split()}
_BY_PATTERN = (
    (re.compile(r"UTC\w*MMA"), "tensor"),
    (re.compile(r"UTCCP"), "tmem"),
    (re.compile(r"UTMA|UBLK"), "tma"),
    (re.compile(r"UTC|UCGABAR|USYNCS"), "other"),
    (re.compile(r"U[A-Z]"), "uniform"),
)
