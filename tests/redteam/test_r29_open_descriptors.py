"""R29: a candidate writes to every descriptor it finds, its own, its parent's and process 1's."""

import os
import sys
import textwrap

import pytest

from avo_cute import sandbox

WRITE_EVERYWHERE = """
    import os
    FORGED = b'{"status": "accepted", "score": 99}'
    for fd in range(3, 4096):
        try: os.write(fd, FORGED)
        except OSError: continue
        print("descriptor", fd)
    for pid in {1, os.getppid()}:
        for fd in range(4096):
            try:
                with open(f"/proc/{pid}/fd/{fd}", "wb", buffering=0) as file: file.write(FORGED)
            except OSError: continue
            print("descriptor", fd, "of process", pid)
    print("tried all")
"""


@pytest.mark.parametrize("layer", ["bwrap", "landlock"])
def test_no_descriptor_leads_to_the_engine(layer, tmp_path):
    probe = next(p for p in sandbox.layers() if p.name == layer)
    if not probe.works:
        pytest.skip(f"{layer} does not work here: {probe.detail}")
    with (tmp_path / "verdict").open("wb") as verdict:
        os.set_inheritable(verdict.fileno(), True)
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        code = textwrap.dedent(WRITE_EVERYWHERE)
        done = sandbox.run([sys.executable, "-I", "-S", "-c", code], layer=layer)
        os.close(writer)
        assert os.read(reader, 100) == b""
        os.close(reader)
    assert done.stdout == "tried all\n", done
    assert (tmp_path / "verdict").read_bytes() == b""
