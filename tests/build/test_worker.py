"""The build worker's own defences, tried in a process of their own."""

import shutil
import subprocess
import sys
from pathlib import Path

import avo_cute

WORKER = Path(avo_cute.__file__).parent / "build" / "worker.py"


def test_the_machines_driver_is_hidden_from_builds(tmp_path):
    """The DSL picks its CUDA flavour by the driver it finds; the artifact must not depend on it."""
    libc = next(p for p in Path("/lib").rglob("libm.so.6"))
    shutil.copy(libc, tmp_path / "libcuda.so.1")
    code = (
        "import ctypes, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('worker', {str(WORKER)!r})\n"
        "worker = importlib.util.module_from_spec(spec); spec.loader.exec_module(worker)\n"
        f"ctypes.CDLL({str(tmp_path / 'libcuda.so.1')!r})\n"
        "worker.hide_driver()\n"
        f"ctypes.CDLL({str(libc)!r}); ctypes.CDLL(None)\n"
        f"try: ctypes.CDLL({str(tmp_path / 'libcuda.so.1')!r})\n"
        "except OSError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert "hidden from builds" in done.stdout, done
