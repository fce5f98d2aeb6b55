"""The softmax task: its files keep their contracts, and its kernel compiles without a GPU."""

import hashlib
import io
import json
import math
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from elftools.elf.elffile import ELFFile

import avo_cute
from avo_cute import knobs
from avo_cute.target import TARGETS
from avo_cute.task import find_task

WORKER = Path(avo_cute.__file__).parent / "build" / "worker.py"
TASK = find_task("softmax")
SEED = TASK.directory / "source"
FILES = {str(p.relative_to(SEED)): p.read_bytes() for p in SEED.rglob("*.py")}
SMALL = {"rows": 6, "cols": 1000}


def test_every_workload_moves_the_same_bytes_and_belongs_to_a_known_class():
    assert {w.class_name for w in TASK.workloads} == {"narrow", "wide"}
    assert {TASK.reference.bytes(w.params) for w in TASK.workloads} == {4.0 * (1 << 25)}
    assert all(w.params["cols"] <= 4096 for w in TASK.select("narrow"))
    assert set(TASK.settings.targets) <= set(TARGETS)


def test_build_py_needs_neither_torch_nor_cutlass_on_the_engines_side():
    code = (
        "import sys; from avo_cute.task import find_task; t = find_task('softmax');"
        "print(t.build.arguments({'rows': 3, 'cols': 8}, {}));"
        "t.reference.flops({'rows': 3, 'cols': 8}); t.knobs.check({}, None);"
        "print(sorted({'torch', 'cutlass', 'tvm_ffi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    tensor = ("tensor", (3, 8), "bfloat16")
    assert done.stdout.splitlines() == [str([tensor, tensor]), "[]"]


def test_flops_and_bytes_by_hand():
    assert TASK.reference.flops({"rows": 3, "cols": 8}) == 5 * 24
    assert TASK.reference.bytes({"rows": 3, "cols": 8}) == 24 * 2 + 24 * 2


# Knobs


def test_every_knob_finds_its_place_in_the_seed():
    values = knobs.read(TASK.knobs.KNOBS, FILES)
    assert set(values) == {knob.name for knob in TASK.knobs.KNOBS}
    for knob in TASK.knobs.KNOBS:
        assert values[knob.name] in {str_of(choice) for choice in knob.choices}


def test_check_accepts_the_seed_and_names_what_it_refuses():
    seed = knobs.read(TASK.knobs.KNOBS, FILES)
    target = TARGETS["b200"]
    assert TASK.knobs.check(seed, target) == []
    assert TASK.knobs.check(seed | {"threads_per_row_wide": "pick()"}, target) == []
    for change, name in (
        ({"threads_per_row_wide": "64"}, "threads_per_row_wide"),  # 256 elements in a thread
        ({"threads_per_row_narrow": "48"}, "threads_per_row_narrow"),
        ({"threads_per_row_wide": "2048"}, "threads_per_row_wide"),
        ({"rows_per_cta_wide": "4"}, "rows_per_cta_wide"),
    ):
        (reason,) = TASK.knobs.check(seed | change, target)
        assert reason.startswith(name)


def test_a_search_has_more_than_a_hundred_legal_candidates():
    seed = knobs.read(TASK.knobs.KNOBS, FILES)
    narrow = [knob for knob in TASK.knobs.KNOBS if knob.applies(TARGETS["b200"], [workload("1k")])]
    assert len(narrow) == 8
    legal = math.prod(
        sum(not TASK.knobs.check(seed | {k.name: c}, TARGETS["b200"]) for c in k.choices)
        for k in narrow
        if k.name != "rows_per_cta_narrow"  # the only one whose choices exclude another's
    )
    assert legal > 100


# Reference


@pytest.mark.parametrize("family", TASK.reference.FAMILIES)
def test_the_two_forms_of_the_reference_agree(family):
    x = TASK.reference.inputs(SMALL, seed=1, family=family)
    direct, online = (TASK.reference.reference(x, form) for form in ("direct", "online"))
    assert direct.dtype == torch.float64 and torch.isfinite(direct).all()
    torch.testing.assert_close(direct, online, rtol=1e-11, atol=1e-290)
    torch.testing.assert_close(direct.sum(-1), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(direct, torch.softmax(x.double(), -1), rtol=1e-11, atol=1e-290)


def test_inputs_follow_the_seed_and_refuse_an_unknown_family():
    first, again, other = (TASK.reference.inputs(SMALL, seed=s) for s in (1, 1, 2))
    assert first.dtype == torch.bfloat16 and first.shape == (6, 1000)
    assert torch.equal(first, again) and not torch.equal(first, other)
    with pytest.raises(ValueError, match="choose one of normal"):
        TASK.reference.inputs(SMALL, seed=1, family="odd")


def shift_by_first(x):
    return x - x[:, :1]


def shift_by_warp_without_correction(x):
    return x - x.unflatten(1, (-1, 250)).amax(-1).repeat_interleave(250, 1)


@pytest.mark.parametrize(
    ("family", "shift"),
    [
        ("shifted", torch.clone),
        ("climbing", shift_by_first),
        ("climbing", shift_by_warp_without_correction),
    ],
)
def test_a_family_catches_what_it_is_there_for(family, shift):
    """An fp32 softmax with this shift in the maximum's place is wrong on this family."""
    x = TASK.reference.inputs(SMALL, seed=3, family=family)
    e = shift(x.float()).exp()
    wrong = (e / e.sum(-1, keepdim=True)).double()
    error = (wrong - TASK.reference.reference(x)).norm() / TASK.reference.reference(x).norm()
    assert not error < 0.1  # NaN is an error too


# Builds


@pytest.mark.parametrize("target", ["b200", "h200", "gb10"])
def test_the_seed_compiles_to_one_kernel_and_one_launch_per_object(target, tmp_path):
    objects = build(SEED, target, TASK.workloads, tmp_path)
    assert len(set(objects.values())) == len(TASK.workloads)  # each width is its own compilation
    for data in objects.values():
        assert len(kernels_of(data)) == 1
        assert launch_sites_of(data) == 1


def test_workloads_of_the_same_width_share_an_object(tmp_path):
    taller = {"name": "taller", "params": {"rows": 77, "cols": 1024}}
    done = build_record(SEED, "b200", [plain(workload("1k")), taller], tmp_path)
    assert done["workloads"] == {"softmax-1k": "0.o", "taller": "0.o"}


def test_each_knob_changes_the_machine_code(tmp_path):
    seed = knobs.read(TASK.knobs.KNOBS, FILES)
    trees = {"seed": FILES}
    for knob in TASK.knobs.KNOBS:
        if knob.applies(TARGETS["b200"], [workload("1k")]):
            value = next(c for c in knob.choices if str_of(c) != seed[knob.name])
            trees[knob.name] = FILES | knobs.apply([knob], FILES, {knob.name: value})
    cubins = compile_trees(trees, "sm_100a", cols=4096, where=tmp_path)
    assert len(set(cubins.values())) == len(trees) == 9, cubins


def test_a_width_with_a_tail_compiles_for_every_layout_of_the_row(tmp_path):
    """1000 columns are no multiple of any of these strides; predicates appear."""
    trees = {
        f"{threads}x{vector}": FILES
        | knobs.apply(
            TASK.knobs.KNOBS,
            FILES,
            {"threads_per_row_narrow": threads, "vector_narrow": vector},
        )
        for threads, vector in (("32", "8"), ("256", "2"), ("1024", "4"))
    }
    assert len(set(compile_trees(trees, "sm_90a", cols=1000, where=tmp_path).values())) == 3


COMPILE_TREES = """
import importlib, os, sys
os.environ["CUTE_DSL_ARCH"] = sys.argv[1]
for tree in sys.argv[3:]:
    sys.path.insert(0, tree)
    for name in [n for n in sys.modules if n.partition(".")[0] == "row_softmax"]:
        del sys.modules[name]
    compiled = importlib.import_module("row_softmax.softmax").compile_row_softmax(int(sys.argv[2]))
    compiled.export_to_c(object_file_path=f"{tree}/k.o", function_name="kernel")
"""


def compile_trees(trees, arch, cols, where):
    """sha256 of the cubin that each tree gives, all compiled in one child process."""
    for name, files in trees.items():
        for file, data in files.items():
            path = where / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    paths = [str(where / name) for name in trees]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE_TREES, arch, str(cols), *paths], check=True
    )
    return {
        name: hashlib.sha256(cubin_of((where / name / "k.o").read_bytes())).hexdigest()
        for name in trees
    }


def build(tree, target, workloads, out):
    """Object bytes by workload, from the engine's own worker (without its sandbox)."""
    record = build_record(tree, target, [plain(w) for w in workloads], out)
    return {name: (out / file).read_bytes() for name, file in record["workloads"].items()}


def build_record(tree, target, workloads, out):
    request = {
        "tree": str(tree),
        "task": str(TASK.directory),
        "packages": list(TASK.settings.packages),
        "target": asdict(TARGETS[target]),
        "workloads": workloads,
    }
    ask = out / "request.json"
    ask.write_text(json.dumps(request))
    command = [sys.executable, "-I", "-W", "ignore", str(WORKER), str(ask), str(out)]
    subprocess.run(command, check=True)
    record = json.loads((out / "record.json").read_text())
    assert "error" not in record, record
    return record


def cubin_of(data):
    return data[data.index(b"\x7fELF", 4) :]


def kernels_of(data):
    sections = ELFFile(io.BytesIO(cubin_of(data))).iter_sections()
    return [s.name for s in sections if s.name.startswith(".text.")]


def launch_sites_of(data):
    """Launches in the function that is called; its inlined copies elsewhere are not reached."""
    elf = ELFFile(io.BytesIO(data))
    symbols = elf.get_section_by_name(".symtab")
    (entry,) = symbols.get_symbol_by_name("__tvm_ffi_kernel")
    inside = range(entry["st_value"], entry["st_value"] + entry["st_size"])
    return sum(
        relocation["r_offset"] in inside
        and symbols.get_symbol(relocation["r_info_sym"]).name == "_cudaLaunchKernelEx"
        for relocation in elf.get_section_by_name(".rela.ltext").iter_relocations()
    )


def workload(size):
    return next(w for w in TASK.workloads if w.name == f"softmax-{size}")


def plain(w):
    return {"name": w.name, "params": dict(w.params)}


def str_of(choice):
    """A choice as `knobs.read` writes it."""
    return repr(eval(choice))
