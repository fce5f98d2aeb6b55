"""docs/agent.md and README.md: their commands, paths, refs, numbers and examples are true."""

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import click
import pytest

from avo_cute import agent, choice, evolve, knowledge, session
from avo_cute.budget import cost, price_of
from avo_cute.cli import main
from avo_cute.model import Patience
from avo_cute.operators import command, single
from avo_cute.records import Usage
from avo_cute.run import INFRA_ERRORS
from avo_cute.supervisor import MOST, alarms

from .messages_server import serving

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / "engine" / "avo_cute"
AGENT, README = ROOT / "docs" / "agent.md", ROOT / "README.md"
PAGES = pytest.mark.parametrize("page", [AGENT, README], ids=lambda page: page.name)
LINES = 260  # a page that nobody reads to its end helps nobody


# Commands.


def blocks(page: Path, kind: str | None = None) -> list[str]:
    """The fenced blocks of a page, of one kind or all."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for named, text in found if kind in (None, named)]


def spans(page: Path) -> list[str]:
    """What stands between backticks, outside of blocks."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def commands(text: str) -> list[list[str]]:
    """The words after `avo-cute` of every call; what stands behind two spaces explains it."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        for begin in re.finditer(r'(?:^|[\s"/`])avo-cute"? (?=[a-z-])', line):
            rest = line[begin.end() :].partition("  ")[0]
            found.append(until_next(rest))
            also = rest.split(" | ")[1:]
            found += [[word] for word in also if word in main.commands]  # log | attempts | best
    return found


def until_next(text: str) -> list[str]:
    """The words of a shell's line, up to a pipe, another command, or where its output goes."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    end = next((n for n, word in enumerate(words) if set(word) <= set(";|&<>()")), len(words))
    redirected = end < len(words) and words[end].startswith(">") and words[end - 1] == "2"
    return words[: end - 1] if redirected else words[:end]


def check(words: list[str], whole: bool) -> None:
    """The command exists and takes these words; nothing of it is run. `whole`: none is missing."""
    name, *rest = words
    assert name in main.commands, f"no command {name}"
    found = main.commands[name]
    while isinstance(found, click.Group) and rest:
        assert rest[0] in found.commands, f"no command {name} {rest[0]}"
        found, rest = found.commands[rest[0]], rest[1:]
    context = click.Context(found, info_name=name)
    given, extra, _ = found.make_parser(context).parse_args(rest)
    assert not extra, f"{words}: too many words: {extra}"
    for parameter in found.params:
        value = given.get(parameter.name)
        absent = value in (None, ()) or parameter.value_is_missing(value)
        missing = parameter.required and absent
        assert not (whole and missing), f"{words}: {parameter.name} is missing"
        if isinstance(parameter, click.Option) and not absent:
            parameter.type_cast_value(context, value)


@PAGES
def test_every_command_in_a_block_can_be_typed(page):
    found = [words for block in blocks(page) for words in commands(block)]
    assert len(found) >= 8
    for words in found:
        check(words, whole=True)


@PAGES
def test_every_command_in_the_prose_exists(page):
    found = [words for span in spans(page) for words in commands(span)]
    assert found
    for words in found:
        check(words, whole=False)


@PAGES
def test_every_option_in_the_prose_belongs_to_some_command(page):
    known = {name for c in main.commands.values() for p in c.params for name in p.opts}
    for span in spans(page):
        if span.startswith("--") and " lineage.git " not in span and span != "--mirror":
            assert span.split()[0] in known | {"--help"}, span


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("avo-cute fly --high", "no command fly"),
        ("avo-cute knowledge forget x", "no command knowledge forget"),
        ("avo-cute evolve --budget 5", "No such option"),
        ("avo-cute evolve --operator robot", "'robot' is not one of"),
        ("avo-cute evolve --hours long", "not a valid float"),
        ("avo-cute evolve --attempts", "requires an argument"),
        ("avo-cute log 7", "too many words"),
        ("avo-cute show", "rev is missing"),
        ("avo-cute ablate --arms agent", "attempts is missing"),
        ('"$PWD/.venv/bin/avo-cute" fly 2>> x.log', "no command fly"),
        ("X=1 avo-cute log | avo-cute walk", "no command walk"),
    ],
)
def test_a_wrong_command_is_found_out(line, said):
    with pytest.raises((AssertionError, click.ClickException)) as wrong:
        for words in commands(line):
            check(words, whole=True)
    assert said in (getattr(wrong.value, "message", "") or str(wrong.value))


def test_words_that_explain_or_redirect_are_no_part_of_a_command():
    assert commands("avo-cute evolve --run r 2>> r.log") == [["evolve", "--run", "r"]]
    assert commands("avo-cute log | attempts | best   the best") == [
        ["log"],
        ["attempts"],
        ["best"],
    ]
    assert commands("avo-cute evaluate REV|DIR    build") == [["evaluate", "REV"]]
    assert commands("avo-cute show 1 --run r    # why; and how") == [["show", "1", "--run", "r"]]
    assert commands("git --git-dir avo-cute.git log, avo-cute: an error") == []


def test_the_client_s_configuration_starts_the_server():
    (block,) = blocks(AGENT, "json")
    (server,) = json.loads(block)["mcpServers"].values()
    assert Path(server["command"]).name == "avo-cute"
    assert server["args"][0] == "mcp"
    check(server["args"], whole=True)


# Files, refs, variables.


@PAGES
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@PAGES
def test_every_path_in_the_prose_exists(page):
    engine = "".join(path.read_text() for path in ENGINE.rglob("*.py"))
    for span in spans(page):
        if not re.fullmatch(r"[\w./-]+", span) or span.startswith("refs/"):
            continue
        if "/" in span or re.search(r"\.(py|md|toml|txt|json|patch)$", span):
            kept = re.split(r"\d{4}", span)[0]  # a file of a transcript: the engine names it
            there = any((base / span).exists() for base in (ROOT, ENGINE, ROOT / "docs"))
            example = f"This is `{span}`" in page.read_text()
            assert there or example or f'"{kept}' in engine, span


@PAGES
def test_every_ref_is_one_that_the_engine_writes(page):
    engine = "".join(path.read_text() for path in ENGINE.rglob("*.py"))
    found = set(re.findall(r"refs/[a-z]+", page.read_text()))
    assert found
    for ref in found - {"refs/remotes"}:  # of a fork, which fetches from the lineage
        assert re.search(rf'"{ref}\b|^ +{ref}/', engine, re.MULTILINE), ref


def test_every_variable_is_one_that_the_engine_sets_or_reads():
    source = (ENGINE / "operators" / "command.py").read_text() + (ENGINE / "config.py").read_text()
    for name in set(re.findall(r"AVO_CUTE_(\w+)", AGENT.read_text())):
        quoted = f'"{name.lower()}"' in source or f"AVO_CUTE_{name}" in source
        assert quoted or f"PREFIX}}{name}" in source, name


# Numbers.


def test_the_page_can_be_read_at_once():
    assert len(AGENT.read_text().splitlines()) <= LINES


def test_the_numbers_are_the_engine_s():
    text = " ".join(AGENT.read_text().split())
    for told in (
        f"after {session.SESSION_ATTEMPTS} attempts, after {agent.STEPS} answers, "
        f"at {agent.CONTEXT_TOKENS:,} tokens",
        f"more than {agent.STEPS} answers, or goes on above {agent.CONTEXT_TOKENS:,} tokens",
        f"at most {session.BRIEF_TOKENS:,} tokens",
        f"the last {session.NOTED_SESSIONS} sessions",
        f"still no answer after {choice.TRIES} tries",
        f"{alarms.STALLED} attempts without one",
        f"{alarms.SAME_FAILURE} failures in a row with one status, or {alarms.SAME_REASON} for one",
        f"{alarms.SAME_ARTIFACT} of the last {alarms.ARTIFACT_WINDOW} attempts",
        f"{alarms.RETURNS} returns to an earlier version within {alarms.RETURN_WINDOW}",
        f"stopped after {command.HOURS} hours",
    ):
        assert told in text, told
    words = {3: "three", 5: "five", 10: "ten"}
    for told in (
        f"after {words[agent.IDLE]} answers in a row that use no tool",
        f"{words[evolve.BARREN]} sessions in a row without an attempt",
        f"{words[INFRA_ERRORS]} attempts in a row that the machine failed",
        f"({words[command.IDLE]} calls in a row",
        f"{words[single.IDLE].capitalize()} unusable answers in a row",
        f"up to {words[single.PARENTS]} earlier changes",
        f"{words[Patience().silence_s // 60]} silent minutes",
        f"up to {words[MOST]} directions",
    ):
        assert told in text, told


def test_the_pauses_add_up_to_what_the_page_says():
    patience = Patience(tries=choice.TRIES)
    own = (min(patience.first_s * 2.0**n, patience.longest_s) for n in range(patience.tries - 1))
    most = sum(own) / 3600
    assert f"about {0.75 * most:.1f} to {most:.1f} hours" in " ".join(AGENT.read_text().split())
    for _ in range(50):
        assert 0.75 * 300 <= patience.pause(20, None) <= 300


def test_the_example_s_cost_is_what_the_table_makes_of_its_tokens():
    text = AGENT.read_text()
    read, write, out = (
        int(re.search(rf"{kind}=(\d+)", text)[1]) for kind in ("cache-read", "cache-write", "out")
    )
    usage = Usage(output=out, cache_read=read, cache_write=write, cache_write_1h=write)
    assert f"Cost-usd: {cost(choice.MODEL, usage):.4f}" in text
    price = price_of(choice.MODEL)
    rates = (f"{out} × {price.output:.2f}", f"{read} × {price.cache_read:.2f}")
    for part in (*rates, f"{write} × {price.cache_write_1h:.2f}", choice.MODEL):
        assert part in text, part
    rows = re.findall(r"^\| .*\| ([\d,]+) \| (\d\.\d\d) USD \|$", text, re.MULTILINE)
    shares = (price.cache_read, price.cache_write_1h, price.output)
    for (tokens, usd), rate in zip(rows, shares, strict=True):
        assert f"{int(tokens.replace(',', '')) * rate / 1e6:.2f}" == usd


def test_what_it_says_about_knowledge_and_arms_exists():
    from avo_cute.ablation import ARMS

    text = AGENT.read_text()
    for arm in ARMS:
        assert re.search(rf"[`,= ]{arm}[`,. ]", text), arm
    assert "knowledge.md" in text and knowledge.__doc__


# The examples, as they stand on the page.


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """typed(line, **environment) runs a line of the page in one folder that has its scripts."""
    home = tmp_path_factory.mktemp("docs-agent")
    (script,) = blocks(AGENT, "python")
    (home / "script.py").write_text(script)
    (mine,) = (block for block in blocks(AGENT, "sh") if block.startswith("#!"))
    (home / "mine.sh").write_text(mine)
    (home / "mine.sh").chmod(stat.S_IRWXU)
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("AVO_CUTE_", "ANTHROPIC_"))}
    keep |= {"AVO_CUTE_CACHE": str(tmp_path_factory.mktemp("cache")), "NO_COLOR": "1"}
    keep["PATH"] = f"{Path(sys.executable).parent}:{keep['PATH']}"

    def run(line: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            line, shell=True, cwd=home, env=keep | environment, capture_output=True, text=True,
            timeout=300, check=True,
        )  # fmt: skip

    run.home = home
    return run


@pytest.fixture(scope="module")
def tried(typed):
    """The page's first run, against the page's script."""
    namespace: dict = {}
    source = (typed.home / "script.py").read_text()
    exec(source.replace("from messages_server", "from tests.messages_server"), namespace)
    with serving(namespace["agent"]) as server:
        line = next(line for line in lines() if "--run try " in line)
        key = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "test"}
        return typed(line, NO_PROXY="127.0.0.1", **key)


def lines() -> list[str]:
    return [line for block in blocks(AGENT, "sh") for line in block.splitlines()]


def test_the_first_run_prints_what_the_page_shows(tried):
    shown = next(block for block in blocks(AGENT, "") if "judging the seed" in block)
    printed = [re.sub(r"\[\d.*s\]|, [\d,]+ tokens", "", x) for x in
               (tried.stderr + tried.stdout).splitlines()]  # fmt: skip
    for line in shown.splitlines():
        if line != "…":
            assert re.sub(r"\[\d.*s\]|, [\d,]+ tokens", "", line) in printed, line


def test_the_first_run_s_cost_is_in_its_session(tried, typed):
    line = next(
        x for x in AGENT.read_text().splitlines() if x.startswith("    $ git --git-dir try")
    )
    told = typed(line.removeprefix("    $ ")).stdout
    assert re.fullmatch(
        r"Transcript of session 1\nTokens: in=\d+ out=\d+ cache-read=\d+ cache-write=\d+\n"
        r"Cost-usd: 0\.\d{4}\n\n?",
        told,
    )


def test_the_lines_to_watch_with_work_on_that_run(tried, typed):
    (block,) = (block for block in blocks(AGENT, "sh") if "for-each-ref" in block)
    block = block.replace("week", "try").replace("lineage.git", "try.git")
    block = block.replace("avo-cute show 17", "avo-cute show 1")
    told = typed(f"set -e\n{block}", AVO_CUTE_LINEAGE="try.git").stdout
    assert "1 accepted" in told
    assert "Hypothesis: They wait at the barrier." in told
    assert re.search(r"accepted 1 0\.\d{4} .*Give wide rows half", told)
    assert '"knowledge_search"' in told
    assert "* Narrow rows are not tried yet." in told


def test_a_mirror_goes_on_elsewhere(tried, typed):
    line = next(line for line in lines() if line.startswith("git clone --mirror"))
    typed(line.replace("/path/to/lineage.git", "try.git").replace(" lineage.git", " moved.git"))
    before = typed("git --git-dir try.git for-each-ref").stdout
    assert typed("git --git-dir moved.git for-each-ref").stdout == before
    told = typed("avo-cute evolve --operator search --lineage moved.git --run try --attempts 1")
    assert "Run try (NVIDIA B200, all): 1 attempt done" in told.stdout


def test_the_script_of_one_s_own_is_an_operator(tried, typed):
    line = next(line for line in lines() if "--command ./mine.sh" in line)
    told = typed(line).stdout
    assert re.search(r"1  accepted +1\.\d+ .*Halve the threads", told)
