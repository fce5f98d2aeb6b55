"""benchmarks/pack.py: what it packs, that pieces come back as they went, and a real install."""

import base64
import hashlib
import importlib.util
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from packaging.requirements import Requirement

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "pack.py"


@pytest.fixture(scope="module")
def pack():
    spec = importlib.util.spec_from_file_location("avo_cute_pack", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def write_wheel(folder: Path, name: str, version: str, requires: str = "") -> Path:
    """A wheel of one module that holds its version, compressed as wheels usually are."""
    info = f"{name}-{version}.dist-info"
    header = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f"version = {version!r}\n" + "# padding\n" * 500,
        f"{info}/METADATA": header + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{path},sha256={digest.decode()},{len(text)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as file:
        for path, text in files.items():
            file.writestr(path, text)
    return wheel


def write_pieces(pack, wheels, folder: Path, size: int) -> list[Path]:
    """Packed as `pack` does it, a piece per folder."""
    pieces = [pack.compress(piece) for piece in pack.cut(pack.tar_of(wheels), size)]
    paths = []
    for n, piece in enumerate(pieces, 1):
        path = folder / chr(96 + n) / f"{n:02d}-of-{len(pieces):02d}.xz"
        path.parent.mkdir(parents=True)
        path.write_bytes(piece)
        paths.append(path)
    return paths


def unpack(folder: Path, python: str = sys.executable) -> subprocess.CompletedProcess:
    command = [python, str(SCRIPT), "unpack", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_all_that_the_engine_needs_is_carried_at_the_pinned_version(pack):
    wanted = pack.wanted()
    names = {entry.partition("==")[0] for entry in wanted}
    assert {"nvidia-cutlass-dsl-libs-cu13", "nvidia-cutlass-dsl-libs-core", "flash-attn-4"} <= names
    assert {"apache-tvm-ffi", "quack-kernels", "gitdb", "pydantic-core", "sqlalchemy"} <= names
    assert names.isdisjoint(pack.THERE)
    pinned = (SCRIPT.parent.parent / "constraints.txt").read_text().lower().replace("_", "-")
    assert set(wanted) <= set(pinned.split())


def test_requirements_of_another_python_or_another_extra_are_none(pack):
    lines = [
        "always>=1",
        "old; python_version < '3.12'",
        "new; python_version >= '3.12'",
        "optional; extra == 'cu13'",
    ]
    assert [r.name for r in pack.needs(lines)] == ["always", "new"]
    assert [r.name for r in pack.needs(lines, ["", "cu13"])] == ["always", "new", "optional"]


def test_a_stored_wheel_holds_the_same_files_uncompressed(pack, tmp_path):
    wheel = write_wheel(tmp_path, "tiny", "1.0")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(BytesIO(pack.stored(wheel))) as new:
        assert [m.filename for m in old.infolist()] == [m.filename for m in new.infolist()]
        assert all(old.read(n) == new.read(n) for n in old.namelist())
        assert {m.compress_type for m in new.infolist()} == {zipfile.ZIP_STORED}


def test_the_same_wheels_give_the_same_bytes(pack, tmp_path):
    wheels = [write_wheel(tmp_path, name, "1.0") for name in ("one", "two")]
    first = pack.tar_of(wheels)
    for wheel in wheels:
        wheel.touch()
    assert pack.tar_of(reversed(wheels)) == first
    with tarfile.open(fileobj=BytesIO(first)) as tar:
        assert tar.getnames() == [wheel.name for wheel in wheels]


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
def test_pieces_come_back_as_they_went(pack, tmp_path, size):
    data = bytes(range(256)) * 3
    pieces = pack.cut(data, size)
    assert all(0 < len(piece) <= size for piece in pieces)
    path = tmp_path / "piece.xz"
    back = b""
    for piece in pieces[:3]:
        path.write_bytes(pack.compress(piece))
        back += pack.decompress(path)
    assert back == data[: 3 * size]
    assert b"".join(pieces) == data


def test_folders_are_filled_in_order_and_never_over_the_limit(pack):
    sizes = [4, 4, 3, 9, 1, 10]
    assert pack.deal([bytes(n) for n in sizes], limit=10) == ["a", "a", "b", "c", "c", "d"]
    with pytest.raises(SystemExit, match="fits no folder"):
        pack.deal([bytes(11)], limit=10)


@pytest.mark.parametrize(
    ("name", "demands", "verdict"),
    [
        ("pytest", ["pytest>=9"], ""),
        ("PyTest", ["other>=999"], ""),
        ("pytest", ["pytest>=9", "pytest>=999"], "is not >=999"),
        ("avo-cute-no-such-package", [], "not here"),
    ],
)
def test_only_what_is_absent_or_refused_is_installed(pack, name, demands, verdict):
    said = pack.why(name, [Requirement(demand) for demand in demands])
    assert said.endswith(verdict) and bool(said) == bool(verdict)


def test_a_missing_piece_is_named(pack, tmp_path):
    wheel = write_wheel(tmp_path / "wheels", "tiny", "1.0")
    first, second, *_ = write_pieces(pack, [wheel], tmp_path / "carry", size=4096)
    second.unlink()
    done = unpack(tmp_path / "carry")
    assert done.returncode != 0
    assert second.name in done.stderr and first.name not in done.stderr
    assert unpack(tmp_path / "empty").returncode != 0


def test_a_bare_machine_gets_what_it_lacks_and_keeps_what_it_has(pack, tmp_path):
    """A fresh environment that has our packages, an old `carried_b` and no `carried_a`."""
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    site = Path(next((tmp_path / "env" / "lib").glob("python*/site-packages")))
    (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    old = write_wheel(tmp_path / "old", "carried_b", "1.0")
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", str(old)]
    subprocess.run(install, check=True)
    wheels = [
        write_wheel(tmp_path / "new", "carried_a", "3.0", requires="carried_b>=2"),
        write_wheel(tmp_path / "new", "carried_b", "2.0"),
        write_wheel(tmp_path / "new", "pytest", "9999.0"),
    ]
    write_pieces(pack, wheels, tmp_path / "carry", size=8192)

    done = unpack(tmp_path / "carry", python)

    assert done.returncode == 0, done.stdout + done.stderr
    code = "import carried_a, carried_b, pytest; print(carried_a.version, carried_b.version)"
    asked = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.split() == ["3.0", "2.0"]
    assert "keep    pytest" in done.stdout
    assert not (site / "pytest.py").exists()
    assert len(list(site.glob("carried_b-*.dist-info"))) == 1
    engine = subprocess.run([python, "-m", "avo_cute", "--version"], cwd="/", check=False)
    assert engine.returncode == 0
