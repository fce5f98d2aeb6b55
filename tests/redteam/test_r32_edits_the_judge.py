"""R32: the task, the evaluator or Python's start-up are edited or shadowed."""

import hashlib
import sys
from pathlib import Path

from tests.conftest import KERNEL, kernel_source

import avo_cute
from avo_cute.records import Status
from avo_cute.task import find_task

PLACES = [Path(avo_cute.__file__).parent, find_task("softmax").directory, Path(__file__).parent]


def fingerprint() -> str:
    digest = hashlib.sha256()
    for place in PLACES:
        for path in sorted(place.rglob("*.*")):
            if path.is_file() and path.suffix in (".py", ".toml"):
                digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def test_nothing_of_ours_can_be_written_during_a_build(attack):
    before = fingerprint()
    worker = Path(avo_cute.__file__).parent / "build" / "worker.py"
    task = find_task("softmax").directory / "task.toml"
    site = Path(sys.prefix) / "lib" / "evil.pth"
    verdict = attack(
        "import os, pathlib, site\n"
        f"targets = [{str(worker)!r}, {str(task)!r}, {str(site)!r}]\n"
        "targets.append(site.getsitepackages()[0] + '/evil.pth')\n"
        "written = []\n"
        "for name in targets:\n"
        "    try:\n"
        "        os.chmod(os.path.dirname(name), 0o777)\n"
        "    except OSError: pass\n"
        "    try:\n"
        "        with open(name, 'a') as f: f.write('')\n"
        "        written.append(name)\n"
        "    except OSError: pass\n"
        "assert not written, written\n"
    )
    assert verdict.status is Status.NO_CHANGE, verdict.detail
    assert fingerprint() == before
    assert not site.exists()


def test_modules_planted_beside_the_candidate_shadow_nothing(judge):
    planted = "raise RuntimeError('shadowed')\n"
    names = [
        "torch.py",
        "cutlass.py",
        "sitecustomize.py",
        "usercustomize.py",
        "conftest.py",
        "row_softmax/torch.py",
        "row_softmax/cutlass.py",
        "json.py",
        "evil.pth",
    ]
    verdict = judge({**dict.fromkeys(names, planted), KERNEL: kernel_source()})
    assert verdict.status is Status.NO_CHANGE, verdict.detail
