"""Whole runs of `avo-cute evolve` on this machine, and what their lineage says afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from proof_about import about
from proof_ground import passed, save, say
from proof_lineage import run_of

from avo_cute.errors import AvoError, BadInput
from avo_cute.lineage import Lineage
from avo_cute.plan import default_target

ENGINE = Path(__file__).resolve().parent.parent / "engine"
LINEAGE, BUNDLE, RUN = "lineage.git", "lineage.bundle", "proof"
VERIFY_S = 200.0  # what `verify` may take
SPARE_S = 20.0  # to stop a run and to read its lineage
KEEP_S = 30.0  # between two looks at a run that goes on
Keep = Callable[[Mapping[str, Any]], None]
BULKY = ("estimates", "facts", "launches", "note")  # of a verification: in the lineage


def evolve(out: Path, jobs: int, minutes: float, within: float) -> None:
    """A search from the seed, in OUT's lineage; and `verify`, if there is time for it."""
    target = default_target()
    words = ["evolve", "--operator", "search", "--target", target, "--run", RUN]
    words += ["--jobs", str(jobs), "--hours", f"{minutes / 60:.4f}"]
    facts = {"target": target, "minutes": minutes}
    _run(words, out, "evolve", RUN, facts, within)
    if passed() + VERIFY_S < within:
        verify(out, jobs, within)
    else:
        say("no time left to verify: run the part verify")


def verify(out: Path, jobs: int, within: float) -> None:
    """Rebuild and measure the best version again."""
    start: dict[str, Any] = {"part": "verify", **about(), "target": default_target()}
    lineage = _lineage(out)
    if lineage is None or RUN not in lineage.runs() or not lineage.best(RUN).number:
        why = "nothing was accepted, so there is nothing to verify"
        say(why)
        save(out / "verify.json", {**start, "why": why})
        return
    words = ["verify", "best", "--run", RUN, "--jobs", str(jobs), "--json"]
    told = _command(words, out / LINEAGE, out / "verify.log", within)
    said = _json(out / "verify.log")
    kept = {key: value for key, value in said.items() if key not in BULKY}
    save(out / "verify.json", {**start, "command": told, "said": kept})
    _bundle(out)


def is_verified(data: Mapping[str, Any] | None) -> bool:
    """Whether a verification came to an answer, whichever."""
    return data is not None and "holds" in data.get("said", {})


def gqa(out: Path, jobs: int, minutes: float, within: float, group: str) -> None:
    """The best version of `evolve` on other workloads, in the same lineage: <group>.json."""
    run, lineage = f"{RUN}-{group}", _lineage(out)
    if lineage is None:
        raise BadInput(f"{out} has neither {LINEAGE} nor {BUNDLE} of evolve")
    words = ["evolve", "--operator", "search", "--workloads", group]
    words += [] if run in lineage.runs() else ["--from", f"lineage/{RUN}"]
    words += ["--run", run, "--target", default_target()]
    words += ["--jobs", str(jobs), "--hours", f"{minutes / 60:.4f}"]
    facts = {"target": default_target(), "minutes": minutes, "group": group}
    _run(words, out, group, run, facts, within)


def _run(
    words: Sequence[str], out: Path, part: str, run: str, facts: Mapping[str, Any], within: float
) -> None:
    """Evolve, and keep what the lineage has meanwhile: whoever ends us loses little."""

    def keep(told: Mapping[str, Any]) -> None:
        _keep(out, part, run, {**facts, "command": told})

    keep(_command(words, out / LINEAGE, out / f"{part}.log", within, keep))


def _command(
    words: Sequence[str],
    lineage: Path,
    log: Path,
    within: float,
    keep: Keep | None = None,
) -> dict[str, Any]:
    """Run avo-cute, its output into `log` and onto ours; returns what happened.

    It is stopped in time for what follows where it would go on beyond `within`. `keep` is called
    now and then with what is known so far.
    """
    command = [sys.executable, "-m", "avo_cute", words[0], "--lineage", str(lineage), *words[1:]]
    paths = [str(ENGINE), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    say(" ".join(["avo-cute", *words]))
    shown = ["avo-cute", words[0], "--lineage", LINEAGE, *words[1:]]
    began, stopped, ended = time.time(), threading.Event(), threading.Event()
    told = {"words": shown, "began": int(began)}
    quiet = "--json" in words
    looking = threading.Thread(target=_keep_on, args=(keep, told, ended), daemon=True)
    looking.start()
    with log.open("w") as file:
        errors = sys.stderr if quiet else subprocess.STDOUT
        process = subprocess.Popen(
            command, env=env, text=True, stdout=subprocess.PIPE, stderr=errors
        )
        timer = threading.Timer(min(within - passed() - SPARE_S, 1e6), _stop, (process, stopped))
        timer.daemon = True
        timer.start()
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                file.write(line)
                if not quiet:
                    print(line, end="", flush=True)
        code = process.wait()
        timer.cancel()
    ended.set()
    looking.join()  # else its last look could come after ours
    seconds = time.time() - began
    say(f"{words[0]} ended with {code} after {seconds:.0f} s")
    return {**told, "code": code, "seconds": seconds, "stopped": stopped.is_set()}


def _keep_on(keep: Keep | None, told: Mapping[str, Any], ended: threading.Event) -> None:
    """What is kept meanwhile has no exit code. A look that fails is made up for by the next."""
    if keep is None:
        return
    while not ended.wait(KEEP_S):
        seconds = time.time() - float(told["began"])
        with suppress(AvoError, OSError, ValueError, LookupError):
            keep({**told, "code": None, "seconds": seconds, "stopped": False})


def _stop(process: subprocess.Popen[str], stopped: threading.Event) -> None:
    """As Ctrl-C twice: at once. What is recorded stays; the attempts in hand are lost."""
    stopped.set()
    for _ in range(2):
        process.terminate()
        time.sleep(1.0)
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()


def _json(path: Path) -> dict[str, Any]:
    text = path.read_text()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"text": text[-2000:]}


def _keep(out: Path, part: str, run: str, facts: Mapping[str, Any]) -> None:
    lineage = _lineage(out)
    if lineage is not None and run in lineage.runs():
        _bundle(out)
        known = run_of(lineage, run)
    else:
        known = {"run": run, "attempts": [], "why": last_line(out / f"{part}.log")}
    save(out / f"{part}.json", {"part": part, **about(), **facts, **known})


def _lineage(out: Path) -> Lineage | None:
    """The lineage of OUT, made from its bundle where only that came along; None without either."""
    if not Lineage.exists(out / LINEAGE) and (out / BUNDLE).is_file():
        words = ["git", "clone", "--quiet", "--mirror", str(out / BUNDLE), str(out / LINEAGE)]
        subprocess.run(words, check=True)
    return Lineage.open(out / LINEAGE) if Lineage.exists(out / LINEAGE) else None


def last_line(path: Path) -> str:
    """What a program said at last."""
    return next((line for line in reversed(path.read_text().splitlines()) if line.strip()), "")


def _bundle(out: Path) -> None:
    """The whole lineage in one file, with every sample of every attempt."""
    scratch = out / f"{BUNDLE}.part"
    words = ["git", "--git-dir", str(out / LINEAGE), "bundle", "create", "--quiet"]
    if subprocess.run([*words, str(scratch), "--all"], check=False).returncode == 0:
        scratch.rename(out / BUNDLE)
