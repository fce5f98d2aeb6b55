"""SASS of a cubin: instructions, basic blocks and natural loops of every kernel.

The text comes from nvdisasm; nothing here knows what an instruction does beyond how it changes
the flow of control, so opcodes of coming GPUs pass through as they are.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from ..errors import MachineFailed
from ..records import Failure, Status
from .flow import Block, Flow, Loop, analyse_flow

INSTRUCTION_BYTES = 16  # since Volta
_OUTPUT_BYTES = 16 << 20  # of text, 70 an instruction; FA4's forward has 0.3 MB
_WALL_S = 120.0  # 0.5 s is usual


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `predicate` is "" or "@P0", "@!UP1", …; `opcode` keeps its modifiers."""

    address: int
    predicate: str
    opcode: str
    operands: str

    @property
    def name(self) -> str:
        """The opcode without modifiers, "FFMA" of "FFMA.FTZ"."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: instructions in address order, blocks in the same order, loops outermost first.

    Blocks and loops refer to instructions and blocks by index.
    """

    name: str
    instructions: tuple[Instruction, ...]
    blocks: tuple[Block, ...]
    loops: tuple[Loop, ...]

    def body(self, block: int) -> tuple[Instruction, ...]:
        """The instructions of one block."""
        b = self.blocks[block]
        return self.instructions[b.start : b.stop]


def disassemble(cubin: bytes) -> tuple[Kernel, ...] | Failure:
    """Every kernel of a cubin, complete; a `Failure` where nvdisasm refuses the bytes.

    Raises `MachineFailed` where nvdisasm is not installed or could not be started.
    """
    with tempfile.TemporaryDirectory(prefix="avo-cute-sass-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = _nvdisasm(path)
    if isinstance(text, Failure):
        return text
    try:
        return parse(text)
    except ValueError as error:
        return Failure(Status.AUDIT_FAILED, f"the cubin's SASS cannot be read: {error}"[:500])


def parse(text: str) -> tuple[Kernel, ...]:
    """The kernels in the output of `nvdisasm -c`; labels in operands become addresses.

    `ValueError` where a line is not understood or instructions are missing: what judges a
    candidate by its instructions must not overlook any.
    """
    kernels = []
    for section in re.split(r"^\.text\.", text, flags=re.MULTILINE)[1:]:
        name, _, code = section.partition(":")
        kernels.append(make_kernel(name, _instructions(code)))
    return tuple(kernels)


def make_kernel(name: str, instructions: Iterable[Instruction]) -> Kernel:
    """A kernel with its blocks and loops worked out."""
    listed = tuple(instructions)
    blocks, loops = analyse_flow([_flow(i) for i in listed], [i.address for i in listed])
    return Kernel(name, listed, blocks, loops)


def find_nvdisasm() -> Path:
    """The nvdisasm of the installed nvidia-cuda-nvdisasm."""
    try:
        files = metadata.distribution("nvidia-cuda-nvdisasm").files or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.name == "nvdisasm" and path.is_file():
            return path
    raise MachineFailed("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")


def _nvdisasm(cubin: Path) -> str | Failure:
    from ..sandbox import Limits, choose_layer, run

    tool = find_nvdisasm()
    done = run(
        [str(tool), "-c", str(cubin)],
        read=[tool.parent, cubin],
        limits=Limits(wall_s=_WALL_S, output_bytes=_OUTPUT_BYTES),
        layer=choose_layer(allow_none=True),  # NVIDIA's program, whatever the bytes it reads
    )
    if done.timed_out:
        return Failure(Status.AUDIT_FAILED, f"nvdisasm was not done after {_WALL_S:.0f} s")
    if done.returncode != 0:
        first = (done.stderr.strip() or "no message").splitlines()[0].replace(str(cubin), "cubin")
        return Failure(Status.AUDIT_FAILED, f"nvdisasm refused the cubin: {first}"[:500])
    return done.stdout


_LINE = re.compile(
    r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;|^(\.L\w+):",
    flags=re.MULTILINE,
)
_ADDRESSED = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/", flags=re.MULTILINE)
_LABEL = re.compile(r"`?\(?(\.L\w+)\)?")


def _instructions(code: str) -> list[Instruction]:
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for address, predicate, opcode, operands, label in _LINE.findall(code):
        if label:
            waiting.append(label)
            continue
        labels.update(dict.fromkeys(waiting, int(address, 16)))
        waiting.clear()
        found.append(Instruction(int(address, 16), predicate, opcode, operands))
    if len(found) != len(_ADDRESSED.findall(code)):
        raise ValueError("a line is no instruction as we know them")
    for n, i in enumerate(found):
        if i.address != n * INSTRUCTION_BYTES:
            raise ValueError(f"instruction {n} stands at {i.address:#x}")
    return [_resolved(i, labels) if ".L" in i.operands else i for i in found]


def _resolved(i: Instruction, labels: Mapping[str, int]) -> Instruction:
    def address(label: re.Match[str]) -> str:
        known = labels.get(label.group(1))
        return label.group() if known is None else hex(known)

    return replace(i, operands=_LABEL.sub(address, i.operands))


# Where control goes after an instruction: does it fall through, and to which addresses may it jump?
_ENDS = frozenset({"EXIT", "RET", "KILL", "RTT"})
_JUMPS = frozenset({"BRA", "JMP"})
_SWITCHES = frozenset({"BRX", "BRXU", "JMX", "JMXU"})
_ADDRESS = re.compile(r"(?<![-\w])0x[0-9a-f]+")


def _flow(i: Instruction) -> Flow:
    """Calls return; the slow path of `BRA.DIV` is never taken here.

    `BRA.DIV` leaves only when a warp has diverged at a warp-wide instruction; its repair code
    would otherwise look like part of every loop that has a shuffle.
    """
    if i.name in _ENDS:
        return _conditional(i), ()
    if i.name in _SWITCHES:
        _, _, targets = i.operands.partition("BRANCH_TARGETS")
        return _conditional(i), tuple(int(t, 16) for t in _ADDRESS.findall(targets))
    if i.name not in _JUMPS or ".DIV" in i.opcode:
        return True, ()
    return _conditional(i), tuple(int(t, 16) for t in _ADDRESS.findall(i.operands)[-1:])


def _conditional(i: Instruction) -> bool:
    """Guarded by its predicate, or by a condition among the operands (`BRA.U UP0, …`)."""
    guards = [i.predicate.lstrip("@"), *(w.strip() for w in i.operands.split(","))]
    return any(re.fullmatch(r"!?U?P\d", g) for g in guards)
