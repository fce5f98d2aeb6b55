"""An installed avo-cute works outside a checkout: the tasks are inside the wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_tasks_are_found_beside_the_package(unpacked, tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(unpacked)!r})\n"
        "import avo_cute; from avo_cute.task import find_task, shipped_tasks\n"
        "from avo_cute.plan import seed_of\n"
        "print(avo_cute.__file__, shipped_tasks())\n"
        "for name in shipped_tasks():\n"
        "    task = find_task(name); task.build, task.reference, task.knobs.KNOBS\n"
        "    print(len(task.workloads), len(seed_of(task).files))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(unpacked) in done.stdout
    assert "['fa4', 'softmax']" in done.stdout
    assert "24 58" in done.stdout


def test_it_holds_no_source_of_others_and_no_scratch(unpacked):
    names = [str(p.relative_to(unpacked)) for p in unpacked.rglob("*") if p.is_file()]
    assert not [n for n in names if "flash_attn/" in n or "__pycache__" in n or "lineage.git" in n]
    assert "avo_cute/sandbox/confine.py" in names and "avo_cute/build/worker.py" in names
    assert [n for n in names if n.endswith("licenses/LICENSE")]
