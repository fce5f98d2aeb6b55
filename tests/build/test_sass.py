"""SASS: what nvdisasm prints becomes instructions, blocks and loops."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avo_cute.build.elf import read_object
from avo_cute.build.flow import analyse_flow
from avo_cute.build.sass import disassemble, find_nvdisasm, parse
from avo_cute.errors import MachineFailed
from avo_cute.records import Failure, Status

NESTED = """
	.target	sm_90a
//--------------------- .text.first ---------
	.section	.text.first,"ax",@progbits
first:
.text.first:
        /*0000*/                   MOV R1, RZ ;
.L_x_1:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
.L_x_0:
        /*0020*/                   FFMA R3, R3, R4, R5 ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
        /*0040*/              @!P2 BRA `(.L_x_2) ;
        /*0050*/                   MUFU.EX2 R3, R3 ;
.L_x_2:
        /*0060*/                   BRA.U UP1, `(.L_x_1) ;
        /*0070*/                   BRA.DIV ~URZ, `(.L_x_3) ;
        /*0080*/                   FROB.NEW.X9 R1, {R2}, desc[UR4][R6.64], 0x7 ;
        /*0090*/                   EXIT ;
.L_x_3:
        /*00a0*/                   BRA `(.L_x_1) ;
.text.second:
        /*0000*/                   EXIT ;
"""

SWITCH = """
.text.switch:
        /*0000*/                   BRX R2 -0x10     (*"BRANCH_TARGETS .L_x_1,.L_x_2"*);
.L_x_1:
        /*0010*/                   EXIT ;
.L_x_2:
        /*0020*/                   NOP ;
        /*0030*/               @P0 BRA `(.L_x_2) ;
        /*0040*/                   EXIT ;
.L_x_9:
        /*0050*/                   BRA `(.L_x_9) ;
"""


def test_instructions_keep_what_nvdisasm_prints():
    first, second = parse(NESTED)
    assert (first.name, second.name) == ("first", "second")
    branch = first.instructions[3]
    assert (branch.address, branch.predicate, branch.opcode) == (0x30, "@P0", "BRA")
    assert branch.operands == "0x20"
    unknown = first.instructions[8]
    assert (unknown.opcode, unknown.name) == ("FROB.NEW.X9", "FROB")
    assert unknown.operands == "R1, {R2}, desc[UR4][R6.64], 0x7"


def test_loops_nest_and_know_what_every_iteration_passes():
    first = parse(NESTED)[0]
    outer, inner = first.loops
    assert (outer.depth, outer.parent, inner.depth, inner.parent) == (0, -1, 1, 0)
    assert inner.blocks < outer.blocks

    def names(blocks):
        return [i.name for b in sorted(blocks) for i in first.body(b)]

    assert names(inner.blocks) == ["FFMA", "BRA"]
    assert "MUFU" in names(outer.blocks) and "MUFU" not in names(outer.always)
    assert "FROB" not in names(outer.blocks)


def test_the_repair_path_of_a_diverged_warp_is_no_loop():
    first = parse(NESTED)[0]
    last = len(first.blocks) - 1
    assert first.body(last)[0].address == 0xA0
    assert all(last not in loop.blocks for loop in first.loops)


def test_indirect_branches_reach_their_listed_targets():
    (kernel,) = parse(SWITCH)
    assert kernel.blocks[0].successors == (1, 2)
    (loop,) = kernel.loops  # the trap at the end cannot be reached
    assert kernel.body(loop.header)[0].name == "NOP"


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("        /*0050*/                   MUFU.EX2 R3, R3 ;\n", ""),
        ("MUFU.EX2 R3, R3 ;", "mufu.ex2 R3, R3 ;"),
        ("        /*0090*/                   EXIT ;", "        /*0090*/                   EXIT"),
        (".L_x_2:\n", "\n[… 12 bytes dropped …]\n        /*0070*/   NOP ;\n"),
    ],
)
def test_no_instruction_is_overlooked(line, broken):
    assert line in NESTED
    with pytest.raises(ValueError):
        parse(NESTED.replace(line, broken))


def test_text_without_kernels_has_none():
    assert parse("") == parse("\t.target\tsm_90a\n") == ()


graphs = st.integers(1, 12).flatmap(
    lambda n: st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(0, n - 1), max_size=2)),
        min_size=n,
        max_size=n,
    )
)


@given(graphs)
def test_dominators_and_loops_agree_with_their_definitions(graph):
    flows = [(falls, tuple(t * 16 for t in targets)) for falls, targets in graph]
    blocks, loops = analyse_flow(flows, [n * 16 for n in range(len(flows))])
    assert [n for b in blocks for n in range(b.start, b.stop)] == list(range(len(flows)))
    reachable = reach(blocks)
    for b in reachable - {0}:
        assert b not in reach(blocks, without=blocks[b].dominator)
    for loop in loops:
        assert loop.header in loop.always <= loop.blocks <= reachable
        assert not (loop.blocks - {loop.header}) & reach(blocks, without=loop.header)
        latches = {b for b in loop.blocks if loop.header in blocks[b].successors}
        for b in loop.blocks - {loop.header}:
            passed = not latches & (reach(blocks, loop.header, without=b) & loop.blocks)
            assert passed == (b in loop.always)


def reach(blocks, start=0, without=-1):
    seen, stack = set(), [start]
    while stack:
        b = stack.pop()
        if b not in seen and b != without:
            seen.add(b)
            stack.extend(blocks[b].successors)
    return seen


@pytest.fixture(scope="module")
def cubins(tmp_path_factory):
    """A tiny kernel for three GPUs, compiled by one child process."""
    out = tmp_path_factory.mktemp("tiny")
    names = [f"{arch}:honest" for arch in ("sm_90a", "sm_100a", "sm_120a")]
    script = Path(__file__).with_name("tiny_kernel.py")
    done = subprocess.run(
        [sys.executable, str(script), str(out), *names],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=out,
    )
    assert done.returncode == 0, done.stderr
    return {path.stem: read_object(path.read_bytes()).cubin for path in out.glob("*.o")}


def test_a_real_cubin_is_read(cubins):
    assert len(cubins) == 3
    for name, cubin in cubins.items():
        (kernel,) = disassemble(cubin)
        opcodes = {i.name for i in kernel.instructions}
        assert {"LDG", "STG", "EXIT"} <= opcodes, name
        assert kernel.blocks[0].dominator == -1
        assert [i.address for i in kernel.instructions] == [
            n * 16 for n in range(len(kernel.instructions))
        ]


def test_bytes_that_are_no_cubin_are_the_candidates_fault(cubins):
    cubin = next(iter(cubins.values()))
    for data in (b"", b"not an ELF file", cubin[: len(cubin) // 2]):
        failure = disassemble(data)
        assert isinstance(failure, Failure)
        assert failure.status is Status.AUDIT_FAILED
        assert "/" not in failure.reason


def test_a_missing_nvdisasm_is_the_machines_fault(monkeypatch):
    assert find_nvdisasm().is_file()
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MachineFailed, match="pip install nvidia-cuda-nvdisasm"):
        find_nvdisasm()
