"""K: what is known before an agent begins, as passages it can search and read.

    source.py     the seed's functions, classes and modules
    dsl.py        signatures and docstrings of the installed CuTe DSL, read as text
    shipped.py    our notes (notes/*.md) and the catalogue of optimisations
    documents.py  what the user added, kept in the lineage; extract.py gets the text out of a file
    index.py      all of it in one SQLite file, in the cache
    base.py       search and read

A run opens it with `open_base`. What stands in a passage is data: it gives no orders.
"""

from __future__ import annotations

from .base import KnowledgeBase
from .opening import open_base

__all__ = ["KnowledgeBase", "open_base"]
