"""The command verify: is an attempt what its commit says?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options as o

if TYPE_CHECKING:
    from ..agreement import Verification
    from ..bench import Bench


@click.command(
    epilog="Examples:\n\n  avo-cute verify best\n\n  avo-cute verify 17 --against seed/fa4\n\n"
    "  avo-cute verify best --devices none --json"
)
@click.argument("rev")
@o.lineage
@o.task
@o.target
@o.run
@o.workloads
@o.option("--against", metavar="REV", help="Measure against this instead of its parent.")
@o.devices
@o.jobs
@o.unsafe
@o.as_json
def verify(
    rev: str,
    lineage_path: Path,
    task: str | None,
    target: str | None,
    run_name: str | None,
    group: str | None,
    against: str | None,
    devices: str,
    jobs: int,
    unsafe: bool,
    as_json: bool,
) -> None:
    """Rebuild a version without the cache, measure it again, and say whether its record holds.

    What was found becomes a note of the commit (refs/notes/bench). Exit 1 where it does not hold.
    Without the target's GPU only the rebuild and the static estimate are verified.
    """
    from ..errors import Refused
    from ..plan import Wanted
    from ..verify import verify_once
    from .run import building
    from .show import Progress, print_json

    wanted = Wanted(lineage_path, task, target, run_name, group, None, unsafe, devices, jobs)
    with Progress(quiet=as_json) as watch, building(jobs) as pool:
        bench, found = verify_once(rev, against, wanted, pool.map, watch)
    if as_json:
        print_json(verification_json(bench, found))
    else:
        print_verification(bench, found)
    if not found.holds:
        raise Refused(f"{rev} does not hold: {found.why}")


def print_verification(bench: Bench, found: Verification) -> None:
    """The verdict of now, then what it says about the record."""
    from .show import print_verdict

    print_verdict(bench, found.verdict, False)
    click.echo(f"rebuilt without the cache: {_ARTIFACT[found.artifact]}")
    for line in found.remarks:
        click.echo(line)
    click.echo("the record holds" if found.holds else "the record does not hold")


_ARTIFACT = {
    "equal": "the same objects, byte for byte",
    "different": "other objects",
    "none": "no objects",
}


def verification_json(bench: Bench, found: Verification) -> dict[str, Any]:
    """A verification as `--json` shows it: `recorded_…` is what the commit says."""
    from .show import verdict_json

    told = verdict_json(bench, found.verdict)
    return told | {
        "commit": found.attempt.commit,
        "attempt": found.attempt.number,
        "recorded_status": str(found.attempt.status),
        "recorded_score": found.attempt.score,
        "recorded_gain": found.was and asdict(found.was),
        "gain_interval": found.gain and asdict(found.gain),
        "against": found.against,
        "artifact_equal": found.artifact == "equal",
        "measured_now": bench.kind == "measured",
        "holds": found.holds,
        "why": found.why,
        "remarks": list(found.remarks),
    }
