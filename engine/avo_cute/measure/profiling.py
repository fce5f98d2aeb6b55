"""The process that a profiler looks into: one linked object, launched a few times, no more.

`python -I -W ignore profiling.py FOLDER`, which holds request.json: the fields of `Ask`. No timing,
no judging, no candidate Python. Standard library, torch and tvm_ffi, like `worker`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":  # run by path, isolated: find our own package first
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from avo_cute.records import Param

WARM = 3  # launches before the one that is profiled: the clock has risen, the pages are there


@dataclass(frozen=True, slots=True)
class Ask:
    """Which object to launch, and for which workload. Paths are text."""

    task: str
    target: str
    library: str
    params: Mapping[str, Param]
    seed: int

    def write(self, folder: Path) -> None:
        (folder / "request.json").write_text(json.dumps(asdict(self)))


def main(folder: Path) -> None:
    """Launch the object `WARM` times and once more; raises where it cannot be launched."""
    import torch

    from avo_cute.measure.kernel import ObjectArm, load_runtime
    from avo_cute.measure.modules import load_modules
    from avo_cute.target import find_target

    ask = Ask(**json.loads((folder / "request.json").read_text()))
    load_runtime()
    modules, target = load_modules(Path(ask.task)), asdict(find_target(ask.target))
    judge, device = modules.judge, torch.device("cuda", 0)
    params, inputs = judge.case(ask.params, judge.FAMILIES[0], ask.seed, str(device))
    outputs = [
        torch.empty(o.shape(params), dtype=getattr(torch, o.dtype), device=device)
        for o in judge.OUTPUTS
    ]
    arm = ObjectArm("candidate", Path(ask.library), modules.build.arguments(dict(params), target))
    launch = arm.bind(params, inputs, outputs)
    for _ in range(WARM + 1):
        launch()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
