"""What `evaluate` prints of a measurement."""

from dataclasses import replace

from avo_cute.cli.table import print_measured
from avo_cute.records import Interval

from ..test_recording import GAINS, MEASURED


def lines(found, capsys):
    print_measured(found)
    return capsys.readouterr().out.splitlines()


def test_a_line_per_workload_with_rates_and_gains_by_arm(capsys):
    found = replace(MEASURED, workloads={"cudnn": GAINS, "incumbent": GAINS, "seed": GAINS})
    out = lines(found, capsys)
    head = next(line for line in out if line.strip().startswith("workload"))
    names = head.split()
    assert names == "workload TFLOPS cold limit vs incumbent vs seed vs cudnn".split()
    first = next(line for line in out if "softmax-1k" in line).split()
    assert first[1:4] == ["20.0", "18.2", "50%"]
    assert first[4:7] == ["+3.00%", "[+2.00%,", "+4.00%]"]
    assert any("geomean" in line and "+2.00% [+1.50%, +2.50%]" in line for line in out)


def test_columns_stand_under_their_heads(capsys):
    out = lines(MEASURED, capsys)
    head = next(line for line in out if "TFLOPS" in line and "vs seed" in line)
    row = next(line for line in out if "softmax-4k" in line)
    for name, value in (("TFLOPS", "20.0"), ("cold", "19.0"), ("limit", "75%")):
        assert head.index(name) + len(name) == row.index(value) + len(value)
    assert len(head) == len(row)


def test_what_there_is_besides_the_table(capsys):
    found = replace(MEASURED, facts={"sm_mhz_low": 1455.0, "sm_mhz_high": 1980.0, "power_w": 687})
    text = "\n".join(lines(found, capsys))
    assert "Simulated GPU, commit level, 60 rounds per workload" in text
    assert "4 hidden workloads against the incumbent: +0.50% [+0.00%, +1.00%]" in text
    assert "120 comparisons with fp64; the worst at 0.71 of its bound" in text
    assert "SM clock 1455 to 1980 MHz, 687 W at the start" in text
    assert "2 rounds void: SM clocks apart" in text
    assert "odd-7: unsupported by the seed" in text
    assert "GPU busy 90% of the timing; 61 s of measuring" in text


def test_what_is_missing_is_no_zero(capsys):
    """Screened out: no isolated launches, no hidden workloads; a baseline that is not there."""
    only = {"softmax-1k": Interval(0.98, 0.97, 0.99)}
    found = replace(
        MEASURED, cold={}, hidden=None, overall={}, workloads={"incumbent": only},
        facts={"unavailable fa2": "torch has no flash attention"}, findings=0,
    )  # fmt: skip
    out = lines(found, capsys)
    assert next(line for line in out if "softmax-1k" in line).split()[2] == "-"
    assert next(line for line in out if "softmax-4k" in line).split()[-1] == "-"
    text = "\n".join(out)
    assert "hidden" not in text and "correctness" not in text and "geomean" not in text
    assert "no fa2: torch has no flash attention" in text
