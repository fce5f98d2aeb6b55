"""Real FlashAttention-4 kernels, built without a GPU for every target."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from avo_cute import knobs, sandbox
from avo_cute.build import BuildRequest, Source, build_class
from avo_cute.build.analyse import ClassResult, judge_class
from avo_cute.plan import seed_of
from avo_cute.records import Failure, Status
from avo_cute.sandbox import choose_layer
from avo_cute.target import find_target
from avo_cute.task import find_task

FA4 = find_task("fa4")


def write_seed(folder: Path) -> Source:
    for name, data in seed_of(FA4).files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return Source("seed", folder)


@pytest.fixture(scope="module")
def seed(tmp_path_factory) -> Source:
    return write_seed(tmp_path_factory.mktemp("fa4"))


@pytest.fixture(scope="module")
def ask(seed, tmp_path_factory):
    """ask(target, group, **changes): a request for one workload class of the seed."""
    cache = tmp_path_factory.mktemp("cache")

    def request(target, group, **changes):
        base = BuildRequest(
            seed, FA4.directory, find_target(target), FA4.select(group), choose_layer(), cache
        )
        return replace(base, **changes)

    return request


def objects(request) -> dict[str, str]:
    built = build_class(request)
    assert not isinstance(built, Failure), built
    return {w: hashlib.sha256(p.read_bytes()).hexdigest() for w, p in built.items()}


def judged(request) -> ClassResult:
    result = judge_class(request)
    assert isinstance(result, ClassResult), result
    return result


@pytest.mark.parametrize(
    ("target", "arch", "roles", "grid", "bound"),
    [
        ("b200", "sm_100a", (56, 192, 72), (2048, 1, 1), None),
        ("h200", "sm_90a", (24, 240), (4096, 1, 1), "tensor"),
    ],
)
def test_the_causal_forward(ask, target, arch, roles, grid, bound):
    first, *rest = (w for w in FA4.select("mha") if w.class_name == "mha-causal")
    result = judged(ask(target, "mha", workloads=(first, rest[0])))
    facts = result.artifacts[0].facts
    assert facts.arch == arch
    assert facts.register_roles == roles  # fa4.md's table of the released kernels
    assert facts.spill_loads == facts.spill_stores == 0
    assert len({a.object_sha256 for a in result.artifacts}) == 1, "sizes are run-time values"
    (launch,) = result.artifacts[0].launches
    assert launch.grid == grid
    assert not launch.pdl
    four, eight = (e.cycles for e in result.estimates)
    assert eight / four == pytest.approx(2, rel=0.05)  # causal: half of S^2 at the same tokens
    assert bound in (None, result.estimates[0].bound)


def test_the_full_forward_uses_two_ctas_and_the_targets_sms(ask, tmp_path):
    request = ask("b200", "mha-full-4k")
    (artifact,) = judged(request).artifacts
    (launch,) = artifact.launches
    assert launch.cluster == (2, 1, 1)
    assert launch.grid == (148, 1, 1)
    assert artifact.facts.tmem_columns == 512

    # A CUDA 12 torch would switch 2-CTA off; the artifact must not depend on torch's flavour.
    other = tmp_path / "task"
    shutil.copytree(FA4.directory, other)
    build = other / "build.py"
    text = build.read_text()
    marker = "    import cutlass.utils\n"
    assert marker in text
    cuda12 = "    import torch\n    torch.version.cuda = '12.8'\n" + marker
    build.write_text(text.replace(marker, cuda12, 1))
    assert objects(replace(request, task=other)) == objects(request)


@pytest.mark.parametrize("layer", ["bwrap", "landlock"])
def test_a_rebuild_elsewhere_gives_the_same_bytes(ask, layer, tmp_path, monkeypatch):
    probe = next(p for p in sandbox.layers() if p.name == layer)
    if not probe.works:
        pytest.skip(f"{layer} does not work here: {probe.detail}")
    monkeypatch.setenv("FLASH_ATTENTION_ARCH", "sm_90")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    monkeypatch.setenv("FA_DISABLE_2CTA", "1")
    request = ask("b200", "mha-causal-4k")
    elsewhere = write_seed(tmp_path / "another folder, with spaces")
    again = replace(request, source=elsewhere, cache=tmp_path / "cache", layer=layer)
    assert objects(again) == objects(request)


@pytest.mark.parametrize(("target", "arch"), [("b300", "sm_103a"), ("gb10", "sm_121a")])
def test_the_other_targets_build(ask, target, arch):
    (artifact,) = judged(ask(target, "mha-causal-4k")).artifacts
    assert artifact.facts.arch == arch


@pytest.mark.parametrize("knob", ["unroll_mma", "unroll_softmax", "unroll_correction"])
def test_unrolling_a_roles_loop_is_no_gain_by_itself(ask, seed, tmp_path, knob):
    """One role doing two steps per iteration must not look as if the others had half the work."""
    chosen = [k for k in FA4.knobs.KNOBS if k.name == knob and "sm100" in k.families]
    files = {k.file: (seed.directory / k.file).read_bytes() for k in chosen}
    before = knobs.read(chosen, files)
    other = next(c for c in chosen[0].choices if knobs.read(chosen, files)[knob] != c)
    shutil.copytree(seed.directory, tmp_path / "tree")
    for name, data in knobs.apply(chosen, files, {knob: other}).items():
        (tmp_path / "tree" / name).write_bytes(data)
    source = Source(f"{knob} {before[knob]} -> {other}", tmp_path / "tree")
    (seed_estimate,) = judged(ask("b200", "mha-causal-8k")).estimates
    (estimate,) = judged(ask("b200", "mha-causal-8k", source=source)).estimates
    assert estimate.cycles == pytest.approx(seed_estimate.cycles, rel=0.03)


def test_gqa_is_another_kernel(ask):
    mha = objects(ask("h200", "mha-causal-4k"))["mha-causal-4k"]
    gqa = objects(ask("h200", "gqa4-causal-4k"))["gqa4-causal-4k"]
    assert mha != gqa


def test_r24_the_installed_flash_attention_is_no_way_out(ask, seed, tmp_path):
    """A file the candidate lacks is not taken from the package installed beside it."""
    shutil.copytree(seed.directory, tmp_path / "tree")
    (tmp_path / "tree" / "flash_attn" / "cute" / "softmax.py").unlink()
    failed = build_class(ask("h200", "mha-causal-4k", source=Source("gap", tmp_path / "tree")))
    assert isinstance(failed, Failure)
    assert failed.status is Status.BUILD_FAILED
    assert "flash_attn.cute.softmax" in failed.reason


@pytest.mark.parametrize("layer", ["bwrap", "landlock"])
def test_r24_not_even_past_the_import_guard(ask, seed, tmp_path, layer):
    """A candidate that takes the guard away still cannot read the installed package."""
    probe = next(p for p in sandbox.layers() if p.name == layer)
    if not probe.works:
        pytest.skip(f"{layer} does not work here: {probe.detail}")
    shutil.copytree(seed.directory, tmp_path / "tree")
    package = tmp_path / "tree" / "flash_attn" / "cute"
    (package / "softmax.py").unlink()
    init = package / "__init__.py"
    escape = (
        "import sys, site, pathlib\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != 'CandidateFinder']\n"
        "__path__.append(str(pathlib.Path(site.getsitepackages()[0]) / 'flash_attn' / 'cute'))\n"
    )
    init.write_text(escape + init.read_text())
    source = Source(f"escape {layer}", tmp_path / "tree")
    failed = build_class(ask("h200", "mha-causal-4k", source=source, layer=layer))
    assert isinstance(failed, Failure), "the installed package was imported"
    assert failed.status is Status.BUILD_FAILED


def test_r07_a_kernel_without_its_matrix_products_is_refused(ask, seed, tmp_path):
    """Nothing that does the work can do without them; seen without running anything."""
    shutil.copytree(seed.directory, tmp_path / "tree")
    kernel = tmp_path / "tree" / "flash_attn" / "cute" / "flash_fwd_sm90.py"
    nothing = (
        "\n\n@cute.jit\ndef _nothing(self, *args, **kwargs):\n    pass\n\n\n"
        "FlashAttentionForwardSm90.load = FlashAttentionForwardSm90.mma = _nothing\n"
    )
    kernel.write_text(kernel.read_text() + nothing)
    failed = judge_class(ask("h200", "mha-causal-4k", source=Source("none", tmp_path / "tree")))
    assert isinstance(failed, Failure), failed
    assert failed.status is Status.AUDIT_FAILED
    assert "matrix" in failed.reason
