"""Candidates that misbehave while they are built: each ends in its status, with the reason."""

import subprocess

import pytest
from tests.conftest import KERNEL, kernel_source

from avo_cute.errors import MachineFailed
from avo_cute.records import Status

HELPER = "row_softmax/helper.py"


def test_the_seed_itself_passes(softmax_baseline):
    assert softmax_baseline.status is Status.NO_CHANGE
    assert softmax_baseline.score == 1.0
    assert softmax_baseline.estimates[0].cycles > 0


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("def broken(:", Status.BUILD_FAILED, "SyntaxError"),
        ("import no_such_module", Status.BUILD_FAILED, "no_such_module"),
        ("import row_softmax.missing", Status.BUILD_FAILED, "row_softmax.missing"),
        ("raise SystemExit(0)", Status.BUILD_FAILED, "SystemExit"),
        ("raise KeyboardInterrupt", Status.BUILD_FAILED, "KeyboardInterrupt"),
        ("class E(BaseException): pass\nraise E('own')", Status.BUILD_FAILED, "own"),
        ("x = [0] * 10**12", Status.BUILD_FAILED, "MemoryError"),
        ("def f(): f()\nf()", Status.BUILD_FAILED, "RecursionError"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", Status.CRASHED, "SIGSEGV"),
        ("import ctypes\nctypes.string_at(0)", Status.CRASHED, "SIGSEGV"),
        ("import os\nos._exit(7)", Status.CRASHED, "status 7"),
    ],
    ids=lambda v: v.splitlines()[0][:24] if isinstance(v, str) and len(v) > 12 else None,
)
def test_ways_to_fail(attack, code, status, says):
    verdict = attack(code)
    assert verdict.status is status, verdict
    assert says in verdict.reason
    assert verdict.score is None


def test_the_failing_line_is_shown_with_its_surroundings(attack):
    lines = len(kernel_source().splitlines())
    verdict = attack("one = 1\ntwo = one / 0\nthree = 3")
    where = f"{KERNEL}:{lines + 4}"
    assert where in verdict.reason
    assert f">  {lines + 4} two = one / 0" in verdict.detail
    assert f"  {lines + 3} one = 1" in verdict.detail
    assert len(verdict.detail) <= 4096


def test_an_error_inside_the_kernel_names_the_candidates_line(judge):
    text = kernel_source().replace("row = bidx *", "row = no_such_name *", 1)
    verdict = judge({KERNEL: text})
    assert verdict.status is Status.BUILD_FAILED
    assert "no_such_name" in verdict.detail
    assert KERNEL in verdict.reason


def test_a_host_that_never_returns_is_stopped(attack):
    verdict = attack("while True: pass", wall_s=4)
    assert verdict.status is Status.TIMED_OUT
    assert "4 s" in verdict.reason


def test_output_without_end_neither_blocks_nor_fills_memory(attack):
    verdict = attack("for _ in range(10_000): print('x' * 10_000)\nraise ValueError('the end')")
    assert verdict.status is Status.BUILD_FAILED
    assert "the end" in verdict.reason


def test_foul_text_is_made_printable(attack):
    verdict = attack(r"raise ValueError('\x1b[2J\x00\udcff bell \x07')")
    assert verdict.status is Status.BUILD_FAILED
    shown = verdict.reason + verdict.detail
    assert "bell" in shown
    assert all(c.isprintable() or c in "\n\t" for c in shown)


def test_a_comment_is_no_change(judge):
    assert judge({KERNEL: kernel_source() + "\n# a thought\n"}).status is Status.NO_CHANGE


def test_candidates_that_differ_in_a_helper_file_only_are_two(judge):
    text = kernel_source().replace('"threads_per_row": 128', '"threads_per_row": THREADS', 1)
    text = text.replace("import functools", "import functools\n\nfrom .helper import THREADS", 1)
    one = judge({KERNEL: text, HELPER: "THREADS = 128\n"})
    two = judge({KERNEL: text, HELPER: "THREADS = 64\n"})
    assert one.status is Status.NO_CHANGE
    assert two.status in (Status.ACCEPTED, Status.REJECTED, Status.EQUAL)
    assert two.artifact != one.artifact


def test_a_deleted_file_fails_the_build_by_name(judge):
    verdict = judge({KERNEL: None})
    assert verdict.status is Status.BUILD_FAILED
    assert "row_softmax.softmax" in verdict.reason


def test_a_changed_launch_signature_is_refused(judge):
    text = kernel_source().replace("        out,\n        cute.runtime", "        cute.runtime", 1)
    text = text.replace("mX: cute.Tensor, mY: cute.Tensor, stream", "mX: cute.Tensor, stream", 1)
    text = text.replace("self.kernel(mX, mY).launch", "self.kernel(mX, mX).launch", 1)
    verdict = judge({KERNEL: text})
    assert verdict.status is Status.AUDIT_FAILED, verdict
    assert "expects 1 parameters" in verdict.reason.lower()


def test_an_illegal_knob_is_refused_before_a_build_is_paid_for(judge, tmp_path):
    text = kernel_source().replace('"threads_per_row": 128', '"threads_per_row": 2048', 1)
    verdict = judge({KERNEL: text}, layer="no such layer: a build would fail loudly")
    assert verdict.status is Status.BUILD_FAILED
    assert "before building" in verdict.reason
    assert "threads" in verdict.reason


def test_work_left_out_is_seen_from_the_floor(judge):
    """R07: a kernel that only loads and stores less than its rows cannot be that fast."""
    text = kernel_source().replace("        if row < mX.shape[0]:", "        if row < 1:")
    text = text.replace(
        "grid=[cute.ceil_div(mX.shape[0], self.tuning.rows_per_cta), 1, 1]", "grid=[1, 1, 1]", 1
    )
    verdict = judge({KERNEL: text})
    assert verdict.status is not Status.ACCEPTED, verdict.reason


def test_a_record_nested_too_deeply_is_malformed(attack):
    verdict = attack(
        "import os, sys\nopen(sys.argv[2] + '/record.json', 'w').write('[' * 200_000)\nos._exit(0)"
    )
    assert verdict.status is Status.BUILD_FAILED
    assert "malformed" in verdict.reason


def test_a_deep_folder_is_cleaned_up(attack, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    verdict = attack(
        "import os, sys\nos.chdir(sys.argv[2])\n"
        "for _ in range(3000): os.mkdir('d'); os.chdir('d')\nos._exit(0)"
    )
    assert verdict.status is Status.BUILD_FAILED
    assert {p.name for p in set(tmp_path.iterdir()) - before} <= {"candidate"}


@pytest.mark.parametrize("code", [130, 192, 255])
def test_an_exit_status_is_no_signal_without_a_name(attack, code):
    verdict = attack(f"import os\nos._exit({code})")
    assert verdict.status is Status.CRASHED
    assert "127" not in verdict.reason


def test_a_full_disk_is_the_machines_fault(attack, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small file system can be mounted by root only")
    try:
        monkeypatch.setattr("tempfile.tempdir", str(disk))
        with pytest.raises(MachineFailed, match="full"):
            attack("open(__import__('sys').argv[2] + '/ballast', 'wb').write(bytes(60_000))")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
