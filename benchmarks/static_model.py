"""How well the static score ranks variants of FlashAttention-4's Hopper forward that were timed.

    .venv/bin/python benchmarks/static_model.py MEASURED.json --cache DIR [--full] [--list]

MEASURED.json holds {"variants": [{"tm": 128, "tn": 128, "ov": true, "rs": true, "gain4096": 0.0,
"gain8192": …}, …]}: tile_m, tile_n, intra_wg_overlap and mma_pv_is_rs of the installed
flash-attn-4, and 100 x ln of the speed-up over the default at each sequence length (null where the
launch was refused). Head dim 128, 16 heads, 32,768 tokens, causal unless --full. Each variant is
compiled for sm_90a (2 to 3 seconds the first time, kept in DIR), estimated, and the two rankings
are compared. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from avo_cute.build.elf import read_object
from avo_cute.build.sass import Kernel, disassemble
from avo_cute.estimate import Work, estimate
from avo_cute.records import Failure, Launch, Workload
from avo_cute.stats import spearman
from avo_cute.target import find_target
from avo_cute.task import find_task

TARGET, TASK = find_target("h200"), find_task("fa4")
TOKENS, HEADS, HEAD_DIM, WARPGROUP = 32768, 16, 128, 128
LENGTHS = (4096, 8192, 16384, 32768)
DEFAULT = (128, 128, True, True)


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation, its measured gains by sequence length, and whether it spills."""

    key: tuple[int, int, bool, bool]
    measured: tuple[float, ...]
    estimated: tuple[float, ...]  # 100 x ln(cycles of the default / cycles)
    spills: bool


def main() -> None:
    options = _options()
    entries = json.loads(options.measured.read_text())["variants"]
    timed = [e for e in entries if all(e.get(f"gain{s}") is not None for s in LENGTHS)]
    kernels = {_key(e): _kernel(_key(e), not options.full, options.cache) for e in timed}
    if DEFAULT not in kernels:
        sys.exit("the default variant (128, 128, true, true) is not among the measured ones")
    base = _cycles(DEFAULT, kernels[DEFAULT], not options.full)
    variants = []
    for entry in timed:
        key = _key(entry)
        cycles = _cycles(key, kernels[key], not options.full)
        gains = tuple(100 * math.log(b / c) for b, c in zip(base, cycles, strict=True))
        measured = tuple(entry[f"gain{s}"] for s in LENGTHS)
        variants.append(Variant(key, measured, gains, _spills(kernels[key])))
    print(f"{len(variants)} variants of {len(entries)}; Spearman, estimated against measured gain")
    for name, chosen in _groups(variants).items():
        print(f"{name:14s} n={len(chosen):3d}  {_row(chosen)}")
    if options.list:
        _list(variants)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="where compiled objects are kept")
    parser.add_argument("--full", action="store_true", help="not causal")
    parser.add_argument("--list", action="store_true", help="print every variant")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    return options


def _groups(variants: list[Variant]) -> dict[str, list[Variant]]:
    groups = {"all": variants, "without spills": [v for v in variants if not v.spills]}
    for tile_m in sorted({v.key[0] for v in variants}):
        groups[f"tile_m {tile_m}"] = [v for v in variants if v.key[0] == tile_m]
    return {name: chosen for name, chosen in groups.items() if len(chosen) > 2}


def _row(variants: list[Variant]) -> str:
    pairs = [
        (str(s), [v.estimated[n] for v in variants], [v.measured[n] for v in variants])
        for n, s in enumerate(LENGTHS)
    ]
    mean = statistics.fmean
    pairs.append(
        ("mean", [mean(v.estimated) for v in variants], [mean(v.measured) for v in variants])
    )
    return "  ".join(f"{name} {spearman(x, y):.3f}" for name, x, y in pairs)


def _list(variants: list[Variant]) -> None:
    for v in sorted(variants, key=lambda v: -statistics.fmean(v.measured)):
        pairs = zip(v.measured, v.estimated, strict=True)
        print(*v.key, *(f"{m:8.1f}/{e:.1f}" for m, e in pairs), "spills" if v.spills else "")


def _cycles(key: tuple[int, int, bool, bool], kernel: Kernel, causal: bool) -> tuple[float, ...]:
    return tuple(_estimate(key, kernel, causal, s) for s in LENGTHS)


def _estimate(key: tuple[int, int, bool, bool], kernel: Kernel, causal: bool, length: int) -> float:
    batch, (tile_m, tile_n, _, rs) = TOKENS // length, key
    params = {"batch": batch, "seqlen_q": length, "seqlen_k": length, "causal": causal}
    params |= {"heads": HEADS, "kv_heads": HEADS, "head_dim": HEAD_DIM}
    ctas = math.ceil(length / tile_m) * HEADS * batch  # the kernel's own launch: a CTA per tile
    q, kv, p = tile_m * HEAD_DIM, 2 * 2 * tile_n * HEAD_DIM, 0 if rs else tile_m * tile_n
    block = (WARPGROUP * (1 + tile_m // 64), 1, 1)  # a producer, and 64 rows each
    launch = Launch(kernel.name, (ctas, 1, 1), block, (1, 1, 1), 2 * (q + kv + p), False)
    work = Work(TASK.reference.flops(params), TASK.reference.bytes(params))
    workload = Workload(str(length), "", (), params)
    return estimate(workload, [kernel], [launch], TARGET, work).cycles


def _kernel(key: tuple[int, int, bool, bool], causal: bool, cache: Path) -> Kernel:
    text = "-".join(str(int(k)) for k in key)
    path = cache / f"fa4-sm90a-{'causal' if causal else 'full'}-{text}.o"
    if not path.exists():
        print(f"compiling {path.name}", file=sys.stderr)
        _compile(key, causal, path)
    obj = read_object(path.read_bytes())
    kernels = obj if isinstance(obj, Failure) else disassemble(obj.cubin)
    if isinstance(kernels, Failure):
        sys.exit(f"{path}: {kernels.reason}")
    return kernels[0]


def _compile(key: tuple[int, int, bool, bool], causal: bool, path: Path) -> None:
    forward = _forward()
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    forward.compile_cache = TASK.build.Asked()
    with FakeTensorMode():
        shape = (4, 8192, HEADS, HEAD_DIM)
        q, k, v = (torch.empty(*shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        tile_m, tile_n, overlap, rs = key
        tiles: dict[str, Any] = {"tile_mn": (tile_m, tile_n), "mma_pv_is_rs": rs}
        forward(q, k, v, causal=causal, return_lse=True, intra_wg_overlap=overlap, **tiles)
    compiled = forward.compile_cache[forward.compile_cache.last]
    part = path.with_suffix(".part")
    compiled.export_to_c(object_file_path=str(part), function_name="kernel")
    part.rename(path)


def _forward() -> Any:
    if "flash_attn.cute.interface" not in sys.modules:
        import os

        os.environ["CUTE_DSL_ARCH"] = TARGET.arch
        TASK.build.prepare(asdict(TARGET))
        import flash_attn.cute.interface  # noqa: F401
    return sys.modules["flash_attn.cute.interface"]._flash_attn_fwd


def _spills(kernel: Kernel) -> bool:
    return any(i.name in ("LDL", "STL") for i in kernel.instructions)


def _key(entry: dict[str, Any]) -> tuple[int, int, bool, bool]:
    return entry["tm"], entry["tn"], entry["ov"], entry["rs"]


if __name__ == "__main__":
    main()
