"""Seeds: upstream's bytes at upstream's paths, or a clear refusal."""

import base64
import hashlib
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from avo_cute.errors import BadInput
from avo_cute.seed import from_checkout, from_folder, from_wheel, identity

FA4 = Path(__file__).parent.parent / "seeds" / "fa4" / "seed.toml"
KERNEL, LICENSE = b"x = 1\r\n", b"do as you like\n"
TAKEN = {"LICENSE": LICENSE, "tiny/cute/AUTHORS": b"me\n", "tiny/cute/a/k.py": KERNEL}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A package installed by hand, and the seed.toml that names it."""
    site = tmp_path / "site"
    files = {
        "tiny/cute/a/k.py": KERNEL,
        "tiny/cute/data.bin": b"\0",
        "tiny_cute-1.0.dist-info/METADATA": b"Name: tiny-cute\nVersion: 1.0\n",
        "tiny_cute-1.0.dist-info/licenses/LICENSE": LICENSE,
        "tiny_cute-1.0.dist-info/licenses/AUTHORS": b"me\n",
    }
    record = "tiny/cute/__pycache__/k.pyc,,\n"
    for name, data in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        record += f"{name},sha256={digest},{len(data)}\n"
    (site / "tiny_cute-1.0.dist-info/RECORD").write_text(record)
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    return seed_toml(tmp_path), site


def seed_toml(folder, **changes):
    values = {
        "package": "tiny-cute", "version": "1.0", "wheel_sha256": "0" * 64,
        "files_sha256": identity(TAKEN),
    } | changes  # fmt: skip
    lines = [f'{key} = "{value}"\n' for key, value in values.items()]
    rules = (
        '{ from = "tiny/**/*.py" }, { from = "*.dist-info/licenses/LICENSE", to = "LICENSE" },'
        '{ from = "*.dist-info/licenses/AUTHORS", to = "tiny/cute/AUTHORS" }'
    )
    path = folder / "seed.toml"
    path.write_text("".join(lines) + f"files = [{rules}]\n")
    return path


def test_the_installed_release(tiny):
    seed = from_wheel(tiny[0])
    assert seed.files == TAKEN
    assert seed.upstream == f"tiny-cute 1.0 {'0' * 64}"
    assert seed.subject == "Import tiny-cute 1.0"


@pytest.mark.parametrize("name", ["tiny/cute/a/k.py", "tiny_cute-1.0.dist-info/licenses/LICENSE"])
def test_an_altered_or_missing_file_is_named_with_the_remedy(tiny, name):
    toml, site = tiny
    remedy = r"pip install --force-reinstall --no-deps tiny-cute==1\.0"
    (site / name).write_bytes(b"x = 2\r\n")
    with pytest.raises(BadInput, match=f"{name} is not as released: .*{remedy}"):
        from_wheel(toml)
    (site / name).unlink()
    with pytest.raises(BadInput, match=f"{name} is missing: .*{remedy}"):
        from_wheel(toml)


def test_a_file_altered_together_with_its_record_is_noticed(tiny):
    toml, site = tiny
    (site / "tiny/cute/a/k.py").write_bytes(b"x = 2\r\n")
    record = site / "tiny_cute-1.0.dist-info/RECORD"
    digests = [
        base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        for data in (KERNEL, b"x = 2\r\n")
    ]
    record.write_text(record.read_text().replace(*digests))
    with pytest.raises(BadInput, match="does not hold the files it was released with"):
        from_wheel(toml)


def test_another_version_and_none_at_all(tiny, tmp_path):
    with pytest.raises(BadInput, match=r"tiny-cute 1\.0 is installed.*==1\.1"):
        from_wheel(seed_toml(tmp_path, version="1.1"))
    with pytest.raises(BadInput, match="no-such-package is not installed"):
        from_wheel(seed_toml(tmp_path, package="no-such-package"))


@pytest.mark.parametrize("text", ["", "package = 1", "not toml", 'wheel_sha256 = "x"'])
def test_a_seed_toml_that_is_none(tmp_path, text):
    (tmp_path / "seed.toml").write_text(text)
    with pytest.raises(BadInput, match=r"seed\.toml"):
        from_wheel(tmp_path / "seed.toml")


def test_flash_attention_4_is_verified_and_at_upstreams_paths():
    seed = from_wheel(FA4)
    assert seed.upstream.startswith("flash-attn-4 4.0.0b36 b6f0e2a2")
    assert {"LICENSE", "flash_attn/cute/AUTHORS"} < set(seed.files)
    assert b"class FlashAttentionForwardSm100" in seed.files["flash_attn/cute/flash_fwd_sm100.py"]
    assert all(p.endswith((".py", "LICENSE", "AUTHORS")) for p in seed.files)
    assert "avo_cute" in sys.modules and "flash_attn" not in sys.modules  # read, not imported


# A user's own checkout.


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout.decode().strip()


@pytest.fixture
def fork(tmp_path):
    folder = tmp_path / "mein fork"
    for name, data in (TAKEN | {"setup.py": b"", "tiny/cute/x.cu": b""}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_a_fork_at_head_or_a_revision(fork, tmp_path):
    git(fork, "init", "-q")
    git(fork, "add", "-A")
    git(fork, "commit", "-qm", "one")
    first = git(fork, "rev-parse", "HEAD")
    (fork / "tiny/cute/a/k.py").write_bytes(b"x = 2\n")
    assert from_checkout(seed_toml(tmp_path), fork).files == TAKEN  # what is committed counts
    git(fork, "commit", "-qam", "two")
    assert from_checkout(seed_toml(tmp_path), fork).files["tiny/cute/a/k.py"] == b"x = 2\n"
    seed = from_checkout(seed_toml(tmp_path), fork, "HEAD~1")
    assert seed.files == TAKEN
    assert seed.upstream == f"tiny-cute mein fork {first}"
    git(fork, "worktree", "add", "-q", str(tmp_path / "tree"), first)
    assert from_checkout(seed_toml(tmp_path), tmp_path / "tree").files == TAKEN
    with pytest.raises(BadInput, match="no revision 'nope'"):
        from_checkout(seed_toml(tmp_path), fork, "nope")


def test_a_fork_that_is_no_repository(fork, tmp_path):
    assert from_checkout(seed_toml(tmp_path), fork).files == TAKEN
    with pytest.raises(BadInput, match="no git repository"):
        from_checkout(seed_toml(tmp_path), fork, "main")


def test_something_else_than_a_fork(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds none of"):
        from_checkout(seed_toml(tmp_path), tmp_path / "empty")


def test_a_link_in_a_fork_is_refused(fork, tmp_path):
    (fork / "tiny/cute/l.py").symlink_to("/etc/passwd")
    git(fork, "init", "-q")
    git(fork, "add", "-A")
    git(fork, "commit", "-qm", "one")
    with pytest.raises(BadInput, match=r"tiny/cute/l\.py .*not a regular file"):
        from_checkout(seed_toml(tmp_path), fork)


def test_a_tasks_own_source(tmp_path):
    source = tmp_path / "softmax" / "source"
    (source / "pkg" / "__pycache__").mkdir(parents=True)
    (source / "pkg" / "k.py").write_bytes(KERNEL)
    (source / "pkg" / "__pycache__" / "k.pyc").write_bytes(b"")
    (source / "l.py").symlink_to("/etc/passwd")
    seed = from_folder(source)
    assert seed.files == {"pkg/k.py": KERNEL}
    assert seed.upstream.startswith("softmax source ")
    with pytest.raises(BadInput, match="holds no files"):
        from_folder(tmp_path / "none")
