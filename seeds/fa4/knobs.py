"""The rules between FlashAttention-4's knobs, checked before a build is paid for.

The knobs themselves are data, in knobs.toml. Where the rules come from: assertions and arithmetic
of the kernels' host code, flash_attn/cute/config.py and sm90_config_search.py of the same release,
and builds (a rule that says "measured" was seen in objects).
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any

from avo_cute.knobs import Knob, Site, Supply
from avo_cute.patterns import SLOT, expression_of, matches, value_of
from avo_cute.records import Target

HEAD_DIM = 128  # of every public workload
_MASKS = ("causal", "full")
_LENGTHS = ("short", "4k", "8k", "16k", "32k")  # the rungs of sm90 tiles
_ELEMENT = 2  # bytes of bf16


def check(values: Mapping[str, str], target: Target) -> list[str]:
    """What is illegal about these values of knobs on this target: one line a broken rule.

    A value that is missing, or that is not a constant expression, breaks no rule.
    """
    rules = {"sm90": _sm90, "sm100": _sm100, "sm120": _sm120}[target.family]
    broken = (line for mask in _MASKS for line in rules(_Values(values), mask, target))
    return list(dict.fromkeys(broken))


class _Values:
    """Values of knobs as numbers; the default stands for a missing knob, or for no number."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def number(self, name: str, default: int, **names: int) -> int:
        value = value_of(self._values.get(name, ""), names)
        return value if isinstance(value, int) else default

    def real(self, name: str, default: float) -> float:
        value = value_of(self._values.get(name, ""))
        return value if isinstance(value, int | float) else default

    def pair(self, name: str, default: tuple[int, int]) -> tuple[int, int]:
        match value_of(self._values.get(name, "")):
            case (int() as first, int() as second):
                return first, second
        return default

    def tile(self, name: str) -> tuple[int, ...]:
        """Rows, keys, P in registers, overlap of a `FwdConfig`."""
        return _tile(self._values.get(name, ""))


@lru_cache(maxsize=1024)
def _tile(text: str) -> tuple[int, ...]:
    """A default stands for what the text does not say, or says as no expression."""
    values = []
    for n, default in enumerate((128, 128, 1, 1)):
        try:
            found = matches(f"FwdConfig({'..., ' * n}{SLOT}, ...)", expression_of(text))
        except ValueError:
            found = None
        value = None if found is None else value_of(ast.unparse(found))
        values.append(value if isinstance(value, int) else default)
    return tuple(values)


def _sm100(v: _Values, mask: str, target: Target) -> Iterator[str]:
    yield from _sm100_tiles(v, mask)
    yield from _sm100_registers(v, mask, "_103" if target.arch == "sm_103a" else "")
    yield from _sm100_columns(v, mask)
    threshold = v.real("rescale_threshold", 8.0)
    if not 0 <= threshold <= 8:
        yield f"rescale_threshold {threshold}: from 0 to 8, above that peaked rows lose accuracy"
    if v.number("kv_stage_cap", 32) < 2:
        yield "kv_stage_cap: K and V take turns in one ring, it needs 2 stages"


def _sm100_tiles(v: _Values, mask: str) -> Iterator[str]:
    tile_n, q_stage = v.number(f"tile_n_{mask}", 128), _q_stage(v, mask)
    tile_m = v.number(f"tile_m_{mask}", 128)
    if tile_m != 128:
        yield f"tile_m_{mask} {tile_m}: a softmax warp group owns 128 rows"
    if q_stage not in (1, 2):
        yield f"q_stage_{mask} {q_stage}: 1 or 2"
    if tile_n <= 0 or tile_n % 16:
        yield f"tile_n_{mask} {tile_n}: a multiple of 16"
    columns = 2 * tile_n + q_stage * HEAD_DIM
    if columns > 512:
        yield f"tile_n_{mask} {tile_n}: S and O take {columns} of 512 tensor memory columns"


def _sm100_registers(v: _Values, mask: str, suffix: str) -> Iterator[str]:
    """The split of 512 registers per lane slot, as the kernel derives what is left for others."""
    names = {"soft": f"soft_regs_{mask}{suffix}", "corr": f"corr_regs_{mask}{suffix}"}
    soft, corr = v.number(names["soft"], 128), v.number(names["corr"], 64)
    for name, count in ((names["soft"], soft), (names["corr"], corr)):
        if count % 8 or not 24 <= count <= 256:
            yield f"{name} {count}: a multiple of 8 from 24 to 256"
    if soft < 128:
        yield f"{names['soft']} {soft}: at least 128, softmax warps only ever raise their count"
    q_stage = _q_stage(v, mask)
    if q_stage not in (1, 2):
        return
    other = min((512 - soft * q_stage - corr) // (3 - q_stage) // 8 * 8, 128)
    if other < 24:
        yield (
            f"{names['soft']} {soft} and {names['corr']} {corr}: {q_stage} × softmax + correction "
            f"leave {other} of 512 registers for the other warps, which need 24"
        )


def _sm100_columns(v: _Values, mask: str) -> Iterator[str]:
    """Columns of S and P that one access or one round of exponentials takes."""
    tile_n = v.number(f"tile_n_{mask}", 128)
    if tile_n < 16:
        return
    for name in ("s_load", "ex2_fragment"):
        width = v.number(name, 32)
        if width < 1 or tile_n % width:
            yield f"{name} {width}: does not divide tile_n_{mask} {tile_n}"
    store, packed = v.number("p_store", 16), tile_n // 2  # two bf16 of P in a column
    if store < 1 or packed % store:
        yield f"p_store {store}: does not divide the {packed} columns of P (tile_n_{mask} {tile_n})"
        return
    early = v.number("split_p", tile_n // 4 * 3, n_block_size=tile_n) // 32 * 32
    if not 0 <= early < tile_n:
        yield f"split_p {early}: less than tile_n_{mask} {tile_n}"
    if packed // store * early % tile_n:
        yield (
            f"split_p {early}: not a whole number of stores (p_store {store}, tile_n_{mask} "
            f"{tile_n}), so P·V would start on columns that are not there yet"
        )


def _q_stage(v: _Values, mask: str) -> int:
    """For the public lengths, all of which are longer than a tile."""
    long = {"seqlen_q_packgqa": 4096, "tile_m": 128, "head_dim_v": HEAD_DIM}
    return v.number(f"q_stage_{mask}", 2, **long)


def _sm90(v: _Values, mask: str, target: Target) -> Iterator[str]:
    stages = v.number(f"sm90_stages_{mask}", 2)
    if stages < 1:
        yield f"sm90_stages_{mask} {stages}: at least 1"
    for length in _LENGTHS:
        yield from _sm90_tile(v, mask, length, target)


def _sm90_tile(v: _Values, mask: str, length: str, target: Target) -> Iterator[str]:
    name, stages = f"sm90_tile_{mask}_{length}", v.number(f"sm90_stages_{mask}", 2)
    tile_m, tile_n, in_registers, overlap = v.tile(name)
    if tile_m not in (64, 128, 192):
        yield f"{name} {tile_m} rows: 64, 128 or 192, 64 for each of up to 3 groups"
        return
    if tile_n % 16 or not 16 <= tile_n <= 256:
        yield f"{name} {tile_n} keys: a multiple of 16 from 16 to 256"
    left = yield from _sm90_registers(v, tile_m // 64)
    need = HEAD_DIM // 2 + tile_n // 2 + (tile_n // 4 if overlap and in_registers else 0)
    if need > left:
        yield (
            f"{name} {tile_m} x {tile_n}: O, S and P need {need} registers a thread, "
            f"sm90_regs_{tile_m // 64} leaves {left}"
        )
    need = (tile_m + 2 * stages * tile_n) * HEAD_DIM * _ELEMENT  # O reuses Q
    need += 0 if in_registers else tile_m * tile_n * _ELEMENT
    if need + 1024 > target.smem_bytes:  # barriers, and alignment
        yield (
            f"{name} {tile_m} x {tile_n}, sm90_stages_{mask} {stages}: Q, K, V and P take {need} "
            f"of {target.smem_bytes} bytes of shared memory"
        )


def _sm90_registers(v: _Values, groups: int) -> Generator[str, None, int]:
    """Rules of the register split; returns what accumulators may take (measured: all but 32)."""
    name = f"sm90_regs_{groups}"
    mma, producer = v.pair(name, {1: (256, 56), 2: (240, 24), 3: (160, 32)}[groups])
    for count in (mma, producer):
        if count % 8 or not 24 <= count <= 256:
            yield f"{name} {count}: a multiple of 8 from 24 to 256"
    if groups * mma + producer > 512:
        yield f"{name}: {groups} × {mma} + {producer} registers are more than 512"
    return mma - 32


def _sm120(v: _Values, mask: str, target: Target) -> Iterator[str]:
    tile_m, tile_n = v.number(f"sm120_tile_m_{mask}", 128), v.number(f"sm120_tile_n_{mask}", 64)
    stages, threads = v.number(f"sm120_stages_{mask}", 1), v.number(f"sm120_threads_{mask}", 128)
    if tile_n <= 0 or tile_n % 16:
        yield f"sm120_tile_n_{mask} {tile_n}: a multiple of 16"
    if threads <= 0 or threads % 32 or (tile_m * 2) % threads or tile_m % (threads // 2):
        yield f"sm120_threads_{mask} {threads}: whole warps of 16 rows of tile_m {tile_m}"
    q, kv = (rows * HEAD_DIM * _ELEMENT for rows in (tile_m, stages * tile_n))
    need = (max(q, kv) if v.number("sm120_q_regs", False) else q + kv) + kv
    if need > target.smem_bytes:
        yield (
            f"sm120_tile_m_{mask} {tile_m}, sm120_tile_n_{mask} {tile_n}, sm120_stages_{mask} "
            f"{stages}: Q, K and V take {need} of {target.smem_bytes} bytes of shared memory"
        )


def _load(path: Path) -> tuple[Knob, ...]:
    data = tomllib.loads(path.read_text("utf-8"))
    knobs = []
    for entry in data["knob"]:
        shared = [data["use"][name] for name in _listed(entry.get("use", ()))]
        for part in (*shared, data["defaults"]):
            entry = {**part, **entry}
        for row in data["each"].get(entry.get("each"), [{}]):
            knobs.append(_knob({**row, **entry}, {k: v for k, v in row.items() if k != "classes"}))
    return tuple(knobs)


def _knob(entry: Mapping[str, Any], names: Mapping[str, str]) -> Knob:
    def filled(key: str, default: Any) -> Any:
        value = entry.get(key, default)
        if isinstance(value, str):
            return Template(value).substitute(names).strip()
        if isinstance(value, int):
            return value
        return tuple(Template(str(item)).substitute(names) for item in value)

    numbers = all(isinstance(choice, int | float) for choice in entry["choices"])
    fields = {
        key: filled(key, default)
        for key, default in {
            "name": "", "file": "", "choices": (), "title": "", "effect": "", "families": (),
            "archs": (), "classes": ("*",), "when": "", "part": "", "ladder": (), "rung": 0,
            "at": "", "workloads": ("*",), "kind": "ordinal" if numbers else "categorical",
        }.items()
    }  # fmt: skip
    index, count = entry.get("of", (0, 1))
    return Knob(
        site=Site(filled("pattern", ""), filled("scope", ""), index, count),
        expect=tuple(
            (str(choice), float(gain)) for choice, gain in entry.get("expect", {}).items()
        ),
        labels=tuple(entry.get("labels", {}).items()),
        supplies=tuple(
            Supply(s["name"], Site(s["pattern"], s.get("scope", "")), s["text"])
            for s in entry.get("supplies", ())
        ),
        **fields,
    )


def _listed(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


KNOBS: tuple[Knob, ...] = _load(Path(__file__).with_name("knobs.toml"))
