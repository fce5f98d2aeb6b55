"""Prompts: what models are told, as files that people can read and change.

`prompts/<name>.md` is text with `$placeholders` (`string.Template`; `$$` is a dollar sign).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template


def prompt(name: str, /, **values: str) -> str:
    """The prompt called `name`, filled in; the text of a value is inserted as it is, `$` and all.

    ValueError for a prompt that does not exist, a stray `$`, a placeholder without a value, or a
    value without a placeholder: a misspelt one is both.
    """
    template = _template(name)
    if not template.is_valid():
        raise ValueError(f"prompts/{name}.md has a $ that begins no placeholder: write $$")
    wanted = set(template.get_identifiers())
    if missing := sorted(wanted - values.keys()):
        raise ValueError(f"prompts/{name}.md wants a value for ${', $'.join(missing)}")
    if unknown := sorted(values.keys() - wanted):
        raise ValueError(f"prompts/{name}.md has no placeholder ${', $'.join(unknown)}")
    return template.substitute(values).strip()


@cache
def _template(name: str) -> Template:
    folder = Path(__file__).parent
    names = sorted(path.stem for path in folder.glob("*.md"))
    if name not in names:
        raise ValueError(f"no prompt is called {name!r}: there are {', '.join(names)}")
    return Template((folder / f"{name}.md").read_text("utf-8"))
