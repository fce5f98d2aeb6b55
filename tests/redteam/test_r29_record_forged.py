"""R29: a candidate writes to every descriptor and forges the build's own record."""

from avo_cute.records import Status

WRITE_EVERYWHERE = (
    "import os\n"
    "for fd in range(3, 256):\n"
    '    try: os.write(fd, b\'{"status": "accepted", "score": 99}\')\n'
    "    except OSError: pass\n"
)
FORGE = (
    "import json, os, sys\n"
    "out = sys.argv[2]\n"
    "open(out + '/0.o', 'wb').write(b'not an object')\n"
    "open(out + '/record.json', 'w').write(json.dumps({'workloads': {'softmax-2k': NAME}}))\n"
    "os._exit(0)\n"
)


def test_open_descriptors_lead_nowhere(attack):
    assert attack(WRITE_EVERYWHERE).status is Status.NO_CHANGE


def test_a_forged_record_cannot_make_an_object_good(attack):
    verdict = attack(FORGE.replace("NAME", "'0.o'"))
    assert verdict.status is Status.AUDIT_FAILED, verdict
    assert verdict.score is None


def test_a_forged_record_cannot_name_a_file_elsewhere(attack):
    verdict = attack(FORGE.replace("NAME", "'/etc/passwd'"))
    assert verdict.status is Status.BUILD_FAILED
    assert "no object" in verdict.reason


def test_a_link_is_not_an_object(attack):
    code = FORGE.replace("NAME", "'0.o'").replace(
        "open(out + '/0.o', 'wb').write(b'not an object')",
        "os.symlink(sys.executable, out + '/0.o')",
    )
    assert attack(code).status is Status.BUILD_FAILED


def test_a_record_for_other_workloads_is_refused(attack):
    verdict = attack(FORGE.replace("softmax-2k", "softmax-99k").replace("NAME", "'0.o'"))
    assert verdict.status is Status.BUILD_FAILED
    assert "missing softmax-2k" in verdict.reason


def test_nonsense_is_not_a_record(attack):
    verdict = attack(
        "import os, sys\nopen(sys.argv[2] + '/record.json', 'w').write('[1, 2')\nos._exit(0)"
    )
    assert verdict.status is Status.BUILD_FAILED
    assert "malformed" in verdict.reason
