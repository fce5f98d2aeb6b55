"""R35: a compiled object is planted in a cache, by a candidate or on disk."""

import json
from dataclasses import replace

from avo_cute.build.cache import Cache
from avo_cute.records import Status


def test_a_candidate_cannot_reach_the_cache(attack, shared_cache):
    before = sorted(shared_cache.rglob("*"))
    verdict = attack(
        "import os\n"
        f"for folder, _, files in os.walk({str(shared_cache)!r}):\n"
        "    assert not files, 'the cache can be listed'\n"
        f"try: os.makedirs({str(shared_cache / 'builds' / 'ff')!r})\n"
        "except OSError: pass\n"
        "open(os.path.expanduser('~/planted.o'), 'w').write('x')\n"
    )
    assert verdict.status is Status.NO_CHANGE, verdict.detail
    assert set(before) <= set(shared_cache.rglob("*"))
    assert not list(shared_cache.rglob("planted.o"))


def test_an_altered_entry_is_a_miss(tmp_path):
    cache = Cache(tmp_path)
    cache.put_build("ab" * 32, {"0.o": b"honest"}, {"w": "0.o"})
    entry = cache.get_build("ab" * 32)
    assert entry is not None and entry["w"].read_bytes() == b"honest"
    entry["w"].write_bytes(b"planted")
    assert cache.get_build("ab" * 32) is None
    cache.put_build("ab" * 32, {"0.o": b"honest"}, {"w": "0.o"})
    assert cache.get_build("ab" * 32)["w"].read_bytes() == b"honest"


def test_a_torn_entry_is_a_miss(tmp_path):
    cache = Cache(tmp_path)
    cache.put_build("cd" * 32, {"0.o": b"honest"}, {"w": "0.o"})
    manifest = next(tmp_path.rglob("manifest.json"))
    for torn in ("", "{", "[]", json.dumps({"workloads": {"w": "0.o"}})):
        manifest.write_text(torn)
        assert cache.get_build("cd" * 32) is None, torn


def test_a_planted_object_is_rebuilt_with_the_same_verdict(attack, softmax_bench, tmp_path):
    own = replace(softmax_bench, cache=tmp_path / "cache")
    honest = attack("pass", cache=own.cache)
    planted = next(own.cache.rglob("*.o"))
    planted.write_bytes(b"\x7fELF planted")
    assert attack("pass", cache=own.cache).artifact == honest.artifact


def test_an_altered_analysis_is_a_miss(tmp_path):
    cache = Cache(tmp_path)
    cache.put_analysis("ef" * 32, '{"cycles": 100}')
    assert cache.get_analysis("ef" * 32) == '{"cycles": 100}'
    entry = next(tmp_path.rglob("*.json"))
    sealed = entry.read_text()
    for altered in (sealed.replace("100", "10"), sealed[:-3], "", '{"cycles": 10}'):
        entry.write_text(altered)
        assert cache.get_analysis("ef" * 32) is None, altered


def test_the_cache_is_pruned_oldest_first(tmp_path):
    import os

    cache = Cache(tmp_path)
    for n in range(4):
        key = f"{n}{n}" * 32
        cache.put_build(key, {"0.o": bytes(1000)}, {"w": "0.o"})
        os.utime(tmp_path / "builds" / key[:2] / key, (n, n))
    cache.prune(limit_bytes=2600)
    kept = [n for n in range(4) if cache.get_build(f"{n}{n}" * 32)]
    assert kept == [2, 3]
