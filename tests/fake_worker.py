"""A measuring process without a GPU: does what its request's task says. Run by path.

`python fake_worker.py [MODE] FOLDER`. MODE is for what goes wrong before a request is read. The
task of the request is one of the functions below, with what it needs in `target`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(mode, folder):
    if mode == "no-torch":
        sys.exit("ModuleNotFoundError: No module named 'torch'")
    if mode == "slow-start":
        time.sleep(60)
    say(folder, "starting", 30)
    say(folder, "ready", 1000)
    if mode == "dies-idle":
        os.kill(os.getpid(), signal.SIGKILL)
    while not (folder / "request.json").exists():
        time.sleep(0.002)
    if mode == "deaf":
        time.sleep(60)
    request = json.loads((folder / "request.json").read_text())
    if request["task"] != "no-cuda":
        say(folder, "loading", 20)
    globals()[request["task"].replace("-", "_")](folder, request)


def no_cuda(folder, request):
    say(folder, "starting CUDA", 20)
    time.sleep(0.1)
    sys.exit("RuntimeError: no CUDA-capable device is detected")


def honest(folder, request):
    leave(folder, facts={"pid": os.getpid(), "device": os.environ["CUDA_VISIBLE_DEVICES"]})


def environment(folder, request):
    leave(folder, facts=dict(os.environ))


def occupy(folder, request):
    """Write when it began and ended to a file, so that overlaps can be seen."""
    started = time.monotonic()
    time.sleep(float(request["target"]))
    facts = {"device": os.environ["CUDA_VISIBLE_DEVICES"], "from": started}
    leave(folder, facts={**facts, "to": time.monotonic()})


def hang(folder, request):
    if os.fork() == 0:
        os.setsid()  # out of reach of a signal to the group
        time.sleep(600)
    say(folder, "timing mha-4k", float(request["target"]))
    time.sleep(600)


def hang_for(folder, request):
    """Hang in the turn of `target`, which was told two seconds ago; see `Watch.other`."""
    take_turn(folder, request["target"], 2)
    say(folder, "timing mha-4k", 1)
    time.sleep(600)


def hang_after_turns(folder, request):
    """A phase that takes too long, in which turns go on changing."""
    say(folder, "timing mha-4k", 1)
    while True:
        take_turn(folder, "seed", 0)
        time.sleep(0.01)


def killed_for(folder, request):
    take_turn(folder, request["target"], 0)
    say(folder, "checking causal", 20)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


def hang_politely(folder, request):
    """Announce one phase after the other for ever."""
    for n in range(100_000):
        say(folder, f"timing round {n}", 5)
        time.sleep(0.05)


def boast(folder, request):
    say(folder, "timing with all the time in the world", 1e300)
    time.sleep(600)


def crash(folder, request):
    sys.stderr.write("about to touch address 0\n")
    sys.stderr.flush()
    say(folder, "checking causal", 20)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGSEGV)


def exit_quietly(folder, request):
    time.sleep(0.1)


def fail(folder, request):
    time.sleep(0.1)
    sys.exit("the worker broke")


def verdict(folder, request):
    leave(folder, status=request["target"], reason="because")


def text(folder, request):
    """Leave `target` as the result, whatever it is."""
    (folder / "result.json").write_text(request["target"])


def link(folder, request):
    (folder / "result.json").symlink_to(request["target"])


def fifo(folder, request):
    os.mkfifo(folder / "result.json")


def huge(folder, request):
    with (folder / "result.json").open("wb") as file:
        file.truncate(65 << 20)


def bad_phase(folder, request):
    """A phase file that is none: it must change nothing and harm nothing."""
    for content in (b"\xff\xfe", b"", b"nan timing", b"5", b"x" * 100_000):
        (folder / "phase").write_bytes(content)
        time.sleep(0.06)
    (folder / "phase").unlink()
    (folder / "phase").symlink_to("/etc/passwd")
    time.sleep(0.06)
    leave(folder)


def write_outside(folder, request):
    try:
        Path(request["target"]).write_text("planted")
    except OSError as error:
        leave(folder, reason=type(error).__name__)
    else:
        leave(folder, reason="written")


def leave(folder, **values):
    result = {"status": "", "reason": "", "detail": "", "samples": [], "findings": [], "facts": {}}
    scratch = folder / "result.part"
    scratch.write_text(json.dumps({**result, **values}))
    scratch.rename(folder / "result.json")


def take_turn(folder, arm, ago):
    path = folder / "turn"
    path.write_bytes(arm.encode().ljust(32))
    os.utime(path, (time.time() - ago,) * 2)


def say(folder, what, seconds):
    scratch = folder / "phase.part"
    scratch.write_text(f"{seconds:.0f} {what}\n")
    scratch.rename(folder / "phase")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 2 else "", Path(sys.argv[-1]))
