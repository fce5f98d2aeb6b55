"""Real lineages with a seed, knowledge bases on them, and files to add."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from avo_cute.knowledge import open_base
from avo_cute.plan import init, seed_of
from avo_cute.task import find_task


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """The session's cache; in the environment from here on, so that indexes are built once."""
    folder = tmp_path_factory.mktemp("knowledge-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AVO_CUTE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def fa4(cache, tmp_path_factory):
    """A lineage with FlashAttention-4's source."""
    task = find_task("fa4")
    return init(tmp_path_factory.mktemp("fa4") / "lineage.git", task, seed_of(task))


@pytest.fixture(scope="session")
def base(fa4):
    """The knowledge base of FA4 on Blackwell."""
    return open_base(fa4, "fa4", "sm100")


@pytest.fixture
def lineage(cache, tmp_path):
    """A fresh lineage with the small softmax seed."""
    task = find_task("softmax")
    return init(tmp_path / "lineage.git", task, seed_of(task))


@pytest.fixture
def avo(cache, tmp_path):
    """avo("knowledge", …, code=1) -> the finished process, in `tmp_path`."""

    def run(*words, code=0):
        done = subprocess.run(command(*words), **surroundings(tmp_path, cache))
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done

    return run


def command(*words):
    return [str(Path(sys.executable).with_name("avo-cute")), *map(str, words)]


def surroundings(folder, cache):
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("AVO_CUTE_", "GIT_"))}
    env = {**keep, "AVO_CUTE_CACHE": str(cache), "NO_COLOR": "1"}
    return {"cwd": folder, "env": env, "capture_output": True, "text": True}


def pdf(*pages):
    """A PDF with a line of text on each page, written by hand."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    parts = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        parts.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * n} 0 R >>"
        )
        parts.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    out, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{part}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(parts) + 1
    out += f"xref\n0 {size}\n0000000000 65535 f \n{table}".encode()
    start = out.index(b"xref\n0 ")
    return out + f"trailer << /Size {size} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()
