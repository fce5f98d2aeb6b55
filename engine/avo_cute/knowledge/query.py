"""From an agent's words to an FTS5 expression, in which nothing of theirs is syntax."""

from __future__ import annotations

import re

from .piece import parts, plain

MOST_TERMS = 64


def expression(query: str) -> str:
    """The FTS5 expression that matches any term of a query; "" where there is none to look for.

    A word is looked for whole (`warpgroup_reg_alloc` is a phrase of three then) and in its parts;
    some have another name in PTX, in the DSL or in papers, which is looked for too. A short
    query counts more where it stands as it is: "P in TMEM" has no rare word.
    """
    words = [word for word in _split(query) if word.lower() not in _EMPTY] or _split(query)
    terms: dict[str, None] = {}
    for word in words:
        terms[word.lower()] = None
        pieces = [p.lower() for p in parts(word)]
        if len(pieces) > 1:
            terms |= dict.fromkeys(p for p in pieces if len(p) > 1)
    told = f" {' '.join(words).lower()} "
    for name, others in _ALSO.items():
        if name in terms or f" {name} " in told:
            terms |= dict.fromkeys(others)
    if 2 < len(said := _split(query)) < 7:
        terms[" ".join(said).lower()] = None
    return " OR ".join(f'"{term}"' for term in list(terms)[:MOST_TERMS])


def _split(query: str) -> list[str]:
    """Words with something to look for in them, without quotes and outer punctuation."""
    found = (word.strip(_OUTER) for word in plain(query[:4000]).replace('"', " ").split())
    return [word for word in found if re.search(r"[^\W_]", word)]


_OUTER = "!#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_EMPTY = frozenset(
    "a an and are as at be by can could did do does for from gave get give had has have how i if "
    "in into is it its many may me most my of on or our should so such than that the their them "
    "there these they this to us use used using was we what when where which who why will with "
    "would you your much".split()
)
# Other names of the same thing; a key of several words must stand so in the query.
_ALSO: dict[str, tuple[str, ...]] = {
    "tmem": ("tensor memory",),
    "tensor memory": ("tmem",),
    "smem": ("shared memory",),
    "shared memory": ("smem",),
    "mufu": ("ex2", "exp2"),
    "sfu": ("mufu", "ex2"),
    "exponential": ("exp2", "ex2", "mufu"),
    "exponentials": ("exp2", "ex2", "mufu"),
    "ex2": ("exp2",),
    "exp2": ("ex2",),
    "setmaxnreg": ("setmaxregister",),
    "warpgroup_reg_alloc": ("setmaxregister_increase", "setmaxnreg"),
    "warpgroup_reg_dealloc": ("setmaxregister_decrease", "setmaxnreg"),
    "umma": ("tcgen05",),
    "utcmma": ("tcgen05",),
    "wgmma": ("warpgroup", "gmma"),
    "gmma": ("wgmma",),
    "2cta": ("two cta", "cta_group"),
    "clc": ("cluster launch control",),
    "pdl": ("programmatic dependent launch",),
    "dsmem": ("distributed shared memory",),
}
