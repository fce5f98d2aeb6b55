"""Objects of a one-kernel module, compiled by tiny_kernel.py in one child process."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from avo_cute.build.audit import audit
from avo_cute.build.elf import read_cubin, read_object
from avo_cute.build.launch import Scalar, Tensor, launches
from avo_cute.build.sass import disassemble
from avo_cute.records import Failure
from avo_cute.target import find_target
from avo_cute.task import AuditLimits

SCRIPT = Path(__file__).with_name("tiny_kernel.py")
VECTOR = Tensor((1000,), (1,), "float32")
CALL = (VECTOR, VECTOR, Scalar(2.0))
LIMITS = AuditLimits(matrix={"sm90": ("HGMMA.*.F32.BF16",), "sm100": ("UTCHMMA",)})


def compile_tiny(out: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Object bytes for every "ARCH:VARIANT" in `names`."""
    subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), str(out), *names], check=True, timeout=300
    )
    return {name: (out / f"{name.replace(':', '-')}.o").read_bytes() for name in names}


def judge_object(data: bytes, arguments=CALL, limits=LIMITS, target="b200") -> dict[str, str]:
    """Broken rule -> line; a `Failure` of reading or launching appears as the rule "failure"."""
    chosen = find_target(target)
    obj = read_object(data)
    if isinstance(obj, Failure):
        return {"failure": obj.reason}
    cubin, kernels = read_cubin(obj.cubin), disassemble(obj.cubin)
    if isinstance(cubin, Failure):
        return {"failure": cubin.reason}
    found = launches(data, arguments, chosen)
    done = () if isinstance(found, Failure) else found
    lines = {"failure": found.reason} if isinstance(found, Failure) else {}
    for v in audit(obj, cubin, kernels, done, limits, chosen):
        if v.rule != "launches" or "failure" not in lines:
            lines[v.rule] = "\n".join([*filter(None, [lines.get(v.rule)]), v.line])
    return lines
