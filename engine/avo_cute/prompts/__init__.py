"""Prompts: what models are told, as files that people can read and change.

`prompts/<name>.md` is text with `$placeholders` (`string.Template`; `$$` is a dollar sign).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template


def prompt(name: str, /, **values: str) -> str:
    """The prompt called `name`, filled in; a `$` in a value stays as it is.

    ValueError for a prompt that does not exist, a stray `$`, or a placeholder without a value.
    Values that it does not use are fine: several prompts share what describes the task.
    """
    template = _template(name)
    if not template.is_valid():
        raise ValueError(f"prompts/{name}.md has a $ that begins no placeholder: write $$")
    if missing := sorted(set(template.get_identifiers()) - values.keys()):
        raise ValueError(f"prompts/{name}.md wants a value for ${', $'.join(missing)}")
    return template.substitute(values).strip()


@cache
def _template(name: str) -> Template:
    folder = Path(__file__).parent
    names = sorted(path.stem for path in folder.glob("*.md"))
    if name not in names:
        raise ValueError(f"no prompt is called {name!r}: there are {', '.join(names)}")
    return Template((folder / f"{name}.md").read_text("utf-8"))
