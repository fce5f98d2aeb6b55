"""What `evaluate` and `verify` print of a measurement: one line per workload, then the rest."""

from __future__ import annotations

import click

from ..records import Interval, Measured
from ..stats import floor_share, tflops


def print_measured(found: Measured) -> None:
    """Rates, gains with 99 % intervals by arm, correctness, clocks, and what was voided and why."""
    against = [arm for arm in ("incumbent", "seed", "cudnn", "fa2") if arm in found.workloads]
    click.echo(f"\n  {found.device}, {found.level} level, {found.rounds} rounds per workload\n")
    click.echo(_row("workload", ["TFLOPS", "cold", "limit"], [f"vs {arm}" for arm in against]))
    for name, seconds in found.seconds.items():
        cold = found.cold.get(name)
        numbers = [
            f"{tflops(found.flops[name], seconds):.1f}",
            f"{tflops(found.flops[name], cold):.1f}" if cold else "-",
            f"{floor_share(found.floor[name], seconds):.0%}",
        ]
        click.echo(_row(name, numbers, [_gain(found.workloads[a].get(name)) for a in against]))
    if found.overall:
        click.echo(_row("geomean", ["", "", ""], [_gain(found.overall.get(a)) for a in against]))
    if found.hidden is not None:
        click.echo(f"  {found.hidden_count} hidden workloads against the incumbent: {found.hidden}")
    click.echo(f"  a gain counts from {found.margin:+.2%} on this machine")
    _print_rest(found)


def _print_rest(found: Measured) -> None:
    if found.findings:
        click.echo(
            f"  correctness: {found.findings} comparisons with fp64; the worst at "
            f"{found.worst:.2f} of its bound ({found.worst_what})"
        )
    for line in found.unsupported:
        click.echo(f"  {line}")
    low, high = found.facts.get("sm_mhz_low"), found.facts.get("sm_mhz_high")
    if low is not None:
        power = found.facts.get("power_w", "?")
        click.echo(f"  SM clock {low:.0f} to {high:.0f} MHz, {power} W at the start")
    for reason, count in found.voids.items():
        click.echo(f"  {count} rounds void: {reason}")
    for name, value in found.facts.items():
        if name.startswith("unavailable "):
            click.echo(f"  no {name.removeprefix('unavailable ')}: {value}")
    click.echo(f"  GPU busy {found.busy:.0%} of the timing; {found.wall_s:.0f} s of measuring\n")


def _row(name: str, numbers: list[str], gains: list[str]) -> str:
    cells = "".join(f"{n:>8s}" for n in numbers) + "".join(f"  {g:>26s}" for g in gains)
    return f"  {name:16s}{cells}"


def _gain(value: Interval | None) -> str:
    return "-" if value is None else str(value)
