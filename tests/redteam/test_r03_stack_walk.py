"""R03: the stack and the heap are walked for the harness. None of it is in that process."""

from avo_cute.records import Status


def test_nothing_of_the_engine_is_reachable(attack):
    verdict = attack(
        "import gc, sys\n"
        "names = {getattr(o, '__module__', None) for o in gc.get_objects()}\n"
        "frame, files = sys._getframe(), set()\n"
        "while frame: files.add(frame.f_code.co_filename); frame = frame.f_back\n"
        "found = [n for n in names if isinstance(n, str) and n.startswith('avo_cute')]\n"
        "assert not found and 'avo_cute' not in sys.modules, found\n"
        "assert not any('score.py' in f or 'evolve.py' in f for f in files), files\n"
        "try:\n    import avo_cute\nexcept ImportError: pass\n"
        "else: raise AssertionError('the engine can be imported')\n"
    )
    assert verdict.status is Status.NO_CHANGE, verdict.detail
