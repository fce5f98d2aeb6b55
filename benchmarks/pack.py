"""Take avo-cute's Python packages to a machine with a GPU and no package index.

    python benchmarks/pack.py pack FOLDER         # here:  FOLDER/a, FOLDER/b, …
    python3 benchmarks/pack.py unpack FOLDER      # there, in a checkout of the same commit

`pack` downloads the wheels that constraints.txt pins, for CPython 3.12 on x86-64, and leaves out
what a machine with PyTorch has anyway (`THERE`). A wheel is a zip file of deflated members; stored
again without compression, put into one tar and compressed with xz they need half the bytes. The tar
is cut into pieces that are compressed, and later restored, independently of each other on all
cores; the pieces are dealt into folders of at most `FOLDER_BYTES`. The same wheels give the same
pieces.

`unpack` restores the wheels from all folders below FOLDER and has pip install those that the
machine lacks: absent, or of a version that avo-cute or another carried package refuses. Everything
else that is installed stays as it is. The packages go where the running interpreter has its own,
since a sandboxed build sees nothing else, and the checkout is put on its path.
"""

from __future__ import annotations

import argparse
import compileall
import io
import lzma
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).resolve().parent.parent
PYTHON = "3.12"
GLIBC = range(5, 40)  # every manylinux_2_N tag that a current Linux accepts; pip matches N exactly
FOLDER_BYTES = 56 << 20
PIECE_BYTES = 48 << 20  # of the tar
EXTRA = ("pytest>=9", "packaging")  # to run the GPU tests there, and for this script itself

# Neither carried nor looked into: what comes with PyTorch for CUDA or is common enough, the other
# CUDA flavour of the DSL, and what only a model needs: none can be reached from there.
THERE = frozenset(
    "torch triton numpy cuda-bindings protobuf tqdm pyyaml jinja2 anthropic mcp "
    "nvidia-cutlass-dsl-libs-cu12".split()
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args()
    started = time.monotonic()
    (pack if chosen.what == "pack" else unpack)(chosen.folder)
    print(f"{chosen.what}: {time.monotonic() - started:.1f} s")


def pack(folder: Path) -> None:
    """Fill FOLDER/a, FOLDER/b, … anew; FOLDER/wheels keeps the downloads."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    chosen = [download(name, wheels) for name in wanted()]
    tar = tar_of(chosen)
    with ProcessPoolExecutor() as pool:
        pieces = list(pool.map(compress, cut(tar, PIECE_BYTES)))
    for old in folder.glob("[a-z]/*.xz"):
        old.unlink()
    for number, (part, piece) in enumerate(zip(deal(pieces), pieces, strict=True), 1):
        path = folder / part / f"{number:02d}-of-{len(pieces):02d}.xz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(piece)
    print(f"{len(chosen)} wheels, {sum(w.stat().st_size for w in chosen) / 2**20:.1f} MiB")
    for part in sorted(p for p in folder.glob("[a-z]") if any(p.iterdir())):
        size = sum(p.stat().st_size for p in part.iterdir())
        print(f"{part}: {size / 2**20:.1f} MiB in {len(list(part.iterdir()))} pieces")


def unpack(folder: Path) -> None:
    """Install what this machine lacks of the carried packages, and the checkout."""
    with tempfile.TemporaryDirectory(prefix="avo-cute-wheels-") as scratch:
        with tarfile.open(fileobj=io.BytesIO(restored(folder))) as tar:
            tar.extractall(scratch, filter="data")
        wheels = sorted(Path(scratch).glob("*.whl"))
        lacking = [w for w, why in verdicts(wheels) if why]
        if lacking:
            install(lacking)
    site = Path(sysconfig.get_path("purelib"))
    (site / "avo-cute-checkout.pth").write_text(f"{CHECKOUT / 'engine'}\n")
    done = subprocess.run([sys.executable, "-m", "avo_cute", "--version"], cwd="/")
    if done.returncode != 0:
        raise SystemExit("the packages are there, but avo-cute does not start")
    print(f"ready: {sys.executable} -m avo_cute")


def wanted() -> list[str]:
    """`NAME==VERSION` of every package to carry: what avo-cute needs, to the last one."""
    pinned = dict(
        line.split("==", 1)
        for line in (CHECKOUT / "constraints.txt").read_text().split()
        if "==" in line
    )
    pins = {canonicalize_name(name): version for name, version in pinned.items()}
    return [f"{name}=={pins[name]}" for name in sorted(closure(declared()))]


def declared() -> list[Requirement]:
    """What pyproject.toml asks for, and EXTRA."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return [Requirement(text) for text in (*project["dependencies"], *EXTRA)]


def closure(requirements: Iterable[Requirement]) -> set[str]:
    """Names of the required packages and of those they require, as installed here."""
    queue, found = list(requirements), dict[str, set[str]]()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras}
        if name in THERE or extras <= found.get(name, set()):
            continue
        found.setdefault(name, set()).update(extras)
        queue += needs(metadata.requires(name) or (), extras)
    return set(found)


def needs(lines: Iterable[str], extras: Iterable[str] = ("",)) -> Iterator[Requirement]:
    """The Requires-Dist lines that hold for the Python and the extras."""
    for requirement in map(Requirement, lines):
        surroundings = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}
        if requirement.marker is None or any(
            requirement.marker.evaluate({**surroundings, "extra": extra}) for extra in extras
        ):
            yield requirement


def download(pinned: str, folder: Path) -> Path:
    """The wheel of `NAME==VERSION`, downloaded unless the folder has it."""
    name, version = pinned.split("==")
    for wheel in folder.glob("*.whl"):
        stem, found, *_ = wheel.name.split("-")
        if (canonicalize_name(stem), found) == (name, version):
            return wheel
    tags = [f"manylinux_2_{n}_x86_64" for n in reversed(GLIBC)]
    tags += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    fixed = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", *platforms]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--python-version", PYTHON]
    subprocess.run([*command, *fixed, "--dest", str(folder), pinned], check=True)
    return download(pinned, folder)


def tar_of(wheels: Iterable[Path]) -> bytes:
    """One tar of all wheels, their members stored as they are, without a trace of here and now."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for wheel in sorted(wheels):
            data = stored(wheel)
            entry = tarfile.TarInfo(wheel.name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return target.getvalue()


def stored(wheel: Path) -> bytes:
    """The same wheel with nothing compressed; RECORD still fits, it speaks of the contents."""
    target = io.BytesIO()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.infolist():
            copy = zipfile.ZipInfo(member.filename, member.date_time)
            copy.external_attr = member.external_attr
            new.writestr(copy, old.read(member), zipfile.ZIP_STORED)
    return target.getvalue()


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def compress(piece: bytes) -> bytes:
    """xz with the x86 filter, which makes jumps to one place alike: most bytes are machine code."""
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6}]
    filters[1]["dict_size"] = PIECE_BYTES
    return lzma.compress(piece, filters=filters)


def deal(pieces: Sequence[bytes], limit: int = FOLDER_BYTES) -> list[str]:
    """A folder's letter for each piece: as few folders as their order allows."""
    letters, letter, used = [], ord("a"), 0
    for piece in pieces:
        if len(piece) > limit:
            raise SystemExit(f"a piece of {len(piece)} bytes fits no folder of {limit}")
        if used + len(piece) > limit:
            letter, used = letter + 1, 0
        used += len(piece)
        letters.append(chr(letter))
    return letters


def restored(folder: Path) -> bytes:
    """The tar, from the pieces in all folders; exits with the missing one's name."""
    found = {path.name: path for path in sorted(folder.rglob("*-of-*.xz"))}
    total = next(iter(found), "01-of-01.xz").partition("-of-")[2]
    names = [f"{n:02d}-of-{total}" for n in range(1, int(total.removesuffix(".xz")) + 1)]
    missing = [name for name in names if name not in found]
    if missing or len(found) != len(names):
        raise SystemExit(f"{folder} lacks {', '.join(missing) or 'nothing but'} of one packing")
    with ProcessPoolExecutor() as pool:
        return b"".join(pool.map(decompress, [found[name] for name in names]))


def decompress(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes())


def verdicts(wheels: Sequence[Path]) -> list[tuple[Path, str]]:
    """Each wheel and why it must be installed here; "" where what is here will do."""
    headers = {wheel: wheel_metadata(wheel) for wheel in wheels}
    demands = declared()
    for header in headers.values():
        demands += needs(header.get_all("Requires-Dist") or ())
    return [(wheel, why(header["Name"], demands)) for wheel, header in headers.items()]


def why(name: str, demands: Iterable[Requirement]) -> str:
    """What is wrong with the installed version of a package, in the eyes of those demands."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        print(f"  install {name}: not here")
        return "not here"
    for demand in demands:
        same = canonicalize_name(demand.name) == canonicalize_name(name)
        if same and not demand.specifier.contains(version, prereleases=True):
            print(f"  replace {name} {version}: {demand} is needed")
            return f"{version} is not {demand.specifier}"
    print(f"  keep    {name} {version}")
    return ""


def wheel_metadata(wheel: Path):
    with zipfile.ZipFile(wheel) as file:
        name = next(n for n in file.namelist() if n.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(file.read(name).decode())


def install(wheels: Sequence[Path]) -> None:
    """pip does it: RECORD and versions are then as from an index. Bytecode is made on all cores."""
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    words += ["--no-index", "--no-deps", "--no-compile", "--no-warn-script-location"]
    words += ["--root-user-action", "ignore", *map(str, wheels)]
    subprocess.run(words, check=True, env={**os.environ, "PIP_CONFIG_FILE": os.devnull})
    site = Path(sysconfig.get_path("purelib"))
    tops = set[str]()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as file:
            tops |= {name.partition("/")[0] for name in file.namelist()}
    for top in sorted(top for top in tops if (site / top).is_dir()):
        compileall.compile_dir(site / top, quiet=2, workers=0)


if __name__ == "__main__":
    main()
