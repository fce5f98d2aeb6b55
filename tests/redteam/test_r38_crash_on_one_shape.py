"""R38: a candidate crashes on the shape it is bad at, and is fine elsewhere."""

from tests.conftest import KERNEL, kernel_source

from avo_cute.records import Status


def test_a_missing_workload_fails_the_whole_candidate(judge):
    from avo_cute.task import find_task

    marker = (
        '    """The tuning for rows of `cols` columns; it never depends on the number of rows."""\n'
    )
    assert marker in kernel_source()
    text = kernel_source().replace(marker, marker + "    assert cols != 4096, 'not this one'\n", 1)
    task = find_task("softmax")
    verdict = judge({KERNEL: text}, workloads=task.select("narrow"))
    assert verdict.status is Status.BUILD_FAILED
    assert "not this one" in verdict.reason
    assert verdict.score is None and not verdict.estimates
