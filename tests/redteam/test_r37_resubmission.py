"""R37: the same kernel again and again until noise smiles."""

from tests.conftest import KERNEL, kernel_source

from avo_cute.records import Status


def test_the_same_objects_keep_the_verdict_they_got(judge):
    wide = kernel_source().replace('"threads_per_row": 128', '"threads_per_row": 64', 1)
    first = judge({KERNEL: wide})
    seen = {first.artifact: (4, first.status)}
    for disguise in ("\n# again\n", "\nUNUSED = 1\n", "\ndef unused():\n    return 2\n"):
        again = judge({KERNEL: wide + disguise}, seen=seen)
        assert again.artifact == first.artifact
        assert again.score == first.score
        assert again.status is (Status.EQUAL if first.status is Status.ACCEPTED else first.status)
