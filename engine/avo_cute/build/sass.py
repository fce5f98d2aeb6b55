"""SASS of a cubin: instructions, basic blocks and natural loops of every kernel.

The text comes from nvdisasm; nothing here knows what an instruction does beyond how it changes
the flow of control, so opcodes of coming GPUs pass through as they are.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..errors import MachineFailed
from ..records import Failure, Status
from .flow import Block, Loop, analyse_flow

INSTRUCTION_BYTES = 16  # since Volta
_OUTPUT_BYTES = 64 << 20
_WALL_S = 60.0


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
    """Every kernel of a cubin; a `Failure` where nvdisasm refuses the bytes.

    Raises `MachineFailed` where nvdisasm is not installed or could not be run to its end.
    """
    with tempfile.TemporaryDirectory(prefix="avo-cute-sass-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = _nvdisasm(path)
    if isinstance(text, Failure):
        return text
    try:
        functions = json.loads(text)[1]
        return tuple(_kernel(f) for f in functions)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        return Failure(Status.AUDIT_FAILED, f"nvdisasm's output makes no sense: {error!r}")


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
        if path.name in ("nvdisasm", "nvdisasm.exe") and path.is_file():
            return path
    raise MachineFailed("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")


def _nvdisasm(cubin: Path) -> str | Failure:
    from ..sandbox import Limits, run

    tool = find_nvdisasm()
    done = run(
        [str(tool), "-json", str(cubin)],
        read=[tool.parent, cubin],
        limits=Limits(wall_s=_WALL_S, output_bytes=_OUTPUT_BYTES),
    )
    if done.timed_out:
        raise MachineFailed(f"nvdisasm did not finish within {_WALL_S:.0f} s")
    if done.returncode != 0:
        first = (done.stderr.strip() or "no message").splitlines()[0].replace(str(cubin), "cubin")
        return Failure(Status.AUDIT_FAILED, f"nvdisasm refused the cubin: {first}"[:500])
    return done.stdout


def _kernel(function: dict[str, object]) -> Kernel:
    name, start, listed = (function[k] for k in ("function-name", "start", "sass-instructions"))
    if not isinstance(name, str) or not isinstance(start, int) or not isinstance(listed, list):
        raise TypeError("function")
    return make_kernel(
        name,
        (
            Instruction(
                start + n * INSTRUCTION_BYTES,
                str(i.get("predicate", "")),
                str(i["opcode"]),
                str(i.get("operands", "")),
            )
            for n, i in enumerate(listed)
        ),
    )


# Where control goes after an instruction: does it fall through, and to which address does it jump?
_ENDS = frozenset({"EXIT", "RET", "BRX", "JMX", "KILL", "RTT"})
_JUMPS = frozenset({"BRA", "JMP"})
_TARGET = re.compile(r"0x[0-9a-f]+\s*$")


def _flow(i: Instruction) -> tuple[bool, int | None]:
    """(falls through, target). Calls return; the slow path of `BRA.DIV` is never taken here.

    `BRA.DIV` leaves only when a warp has diverged at a warp-wide instruction; its repair code
    would otherwise look like part of every loop that has a shuffle.
    """
    if i.name in _ENDS:
        return _conditional(i), None
    if i.name not in _JUMPS or ".DIV" in i.opcode:
        return True, None
    found = _TARGET.search(i.operands)
    return _conditional(i), int(found.group(), 16) if found else None


def _conditional(i: Instruction) -> bool:
    """Guarded by its predicate, or by a condition among the operands (`BRA.U UP0, …`)."""
    guards = [i.predicate.lstrip("@"), *_words(i.operands)]
    return any(re.fullmatch(r"!?U?P\d", g) for g in guards)


def _words(operands: str) -> Sequence[str]:
    return [w.strip() for w in operands.split(",")]
