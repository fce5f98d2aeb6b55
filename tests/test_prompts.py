"""Prompts: files that people change, filled in without a slip."""

from pathlib import Path

import pytest

import avo_cute.prompts
from avo_cute.prompts import prompt

FOLDER = Path(avo_cute.prompts.__file__).parent
ABOUT = ("task", "target", "workloads", "editable", "score")  # what a session says of its task
WANTED = {
    "agent": ABOUT,
    "single-turn": ABOUT,
    "command": (*ABOUT, "workspace", "message"),
    "supervisor": ("task",),
}


def test_every_prompt_is_listed_here():
    assert {path.stem for path in FOLDER.glob("*.md")} == WANTED.keys()


@pytest.mark.parametrize("name", WANTED)
def test_a_prompt_is_the_file_with_its_values(name):
    values = {key: f"<{key}>" for key in WANTED[name]}
    text = (FOLDER / f"{name}.md").read_text().strip()
    for key, value in values.items():
        assert f"${key}" in text
        text = text.replace(f"${key}", value)
    assert prompt(name, **values) == text
    assert "$" not in text


@pytest.mark.parametrize("value", ["$score", "${task}", "$$", "$ 5", "\\1 {x} %s", "a\nb", ""])
def test_the_text_of_a_value_is_inserted_as_it_is(value):
    told = prompt("agent", **dict.fromkeys(ABOUT, "-") | {"task": f"[{value}]"})
    assert f"\n[{value}]\n" in told
    assert told.count("$") == value.count("$")


@pytest.mark.parametrize("name", WANTED)
def test_a_value_that_is_missing_or_unknown_is_an_error(name):
    values = dict.fromkeys(WANTED[name], "x")
    for key in WANTED[name]:
        rest = {k: v for k, v in values.items() if k != key}
        with pytest.raises(ValueError, match=rf"{name}\.md wants a value for \${key}$"):
            prompt(name, **rest)
        with pytest.raises(ValueError, match=rf"{name}\.md wants a value for \${key}$"):
            prompt(name, **rest, **{f"{key}s": "x"})
    with pytest.raises(ValueError, match=rf"{name}\.md has no placeholder \$a, \$name$"):
        prompt(name, **values, name="x", a="x")


@pytest.mark.parametrize("name", ["", "nope", "agent.md", "../memory", "/etc/passwd"])
def test_a_prompt_that_does_not_exist(name):
    with pytest.raises(
        ValueError, match=r"no prompt is called .* agent, command, single-turn, sup"
    ):
        prompt(name)
