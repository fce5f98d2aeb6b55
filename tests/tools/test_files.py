"""The workspace's tools, over a real session: nothing that a shell left there is believed."""

import os
import socket
import time

import pytest

from avo_cute.errors import BadInput
from avo_cute.tools import bounded
from avo_cute.tools.files import Files
from avo_cute.tools.folder import Folder

from ..conftest import KERNEL
from .conftest import Bench

NEW = "row_softmax/new.py"


def quoted_part(text):
    """What stands between the marks, of which there is one pair."""
    assert text.count("<data from=") == text.count("</data>") == 1, text
    return text.partition(">\n")[2].rpartition("\n</data>")[0]


def numbered(text):
    """Line number -> line of a view."""
    pairs = (line.lstrip().partition("  ") for line in quoted_part(text).splitlines())
    return {int(n): line for n, _, line in pairs}


def test_a_list_marks_what_may_be_edited(use):
    use.path("notes.txt").write_text("mine")
    lines = quoted_part(use("list_files")).splitlines()
    assert lines[0].split() == ["4", "notes.txt"]
    assert lines[-1].split() == ["*", str(use.path().stat().st_size), KERNEL]
    assert quoted_part(use("list_files", pattern="*.txt")).split() == ["4", "notes.txt"]
    assert "no file matches" in use("list_files", pattern="*.cu")


def test_a_pattern_with_many_stars_is_cheap(use):
    deep = use.path("/".join("d" * 30))
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    started = time.monotonic()
    assert "no file matches" in use("list_files", pattern="**/d" * 14 + "/**/nothing")
    assert time.monotonic() - started < 2


def test_a_view_has_the_lines_that_were_asked_for(use):
    lines = use.path().read_text().split("\n")
    shown = numbered(use("view", path=KERNEL, first=3, last=6))
    assert shown == {n: lines[n - 1] for n in (3, 4, 5, 6)}
    assert list(numbered(use("view", path=KERNEL, last=2))) == [1, 2]
    assert "has" in use.refused("view", path=KERNEL, first=100_000)


def test_a_view_says_where_it_ends(use):
    use.path(NEW).write_text("".join(f"x = {n}  # {'é' * 60}\n" for n in range(5000)))
    text = use("view", path=NEW, first=100)
    shown = numbered(text)
    assert text.startswith(f"{NEW}, lines 100 to {max(shown)} of 5000\n")
    assert list(shown) == list(range(100, max(shown) + 1)) and max(shown) > 150
    assert numbered(use("view", path=NEW, first=max(shown) + 1))


def test_only_a_newline_ends_a_line(use):
    use.path(NEW).write_text("a\x0cb\u2028c\nd\n")
    assert list(numbered(use("view", path=NEW))) == [1, 2]
    use("insert", path=NEW, after=1, text="between")
    assert use.path(NEW).read_text() == "a\x0cb\u2028c\nbetween\nd\n"


def test_an_empty_file_can_be_seen_and_filled(use):
    use("create", path=NEW, text="")
    assert use("view", path=NEW).startswith(f"{NEW}, lines 1 to 0 of 0")
    use("insert", path=NEW, after=0, text="x = 1")
    assert use.path(NEW).read_text() == "x = 1\n"


def test_a_long_line_is_cut_and_says_so(use):
    use.path(NEW).write_text("y" * 1000 + "\n")
    assert numbered(use("view", path=NEW))[1] == "y" * 400 + " … 600 characters more"


def test_search_gives_path_line_and_text(use):
    use.path(NEW).write_text("one\ntwo -e\n")
    assert quoted_part(use("search_files", expression="^tw[o]")) == f"{NEW}:2:two -e"
    assert quoted_part(use("search_files", expression="-e", pattern="**/new.py")).endswith("-e")
    assert "nothing matches" in use("search_files", expression="no such words")
    assert "no file matches" in use.refused("search_files", expression="x", pattern="*.cu")


def test_search_stops_at_a_hundred(use):
    use.path(NEW).write_text("match\n" * 150)
    use.path("row_softmax/newer.py").write_text("match\n" * 150)
    lines = quoted_part(use("search_files", expression="match")).splitlines()
    assert len(lines) == 101 and lines[-1].startswith("… and more")


@pytest.mark.parametrize("expression", ["(", "[", "a{99999}", r"(a)\2"])
def test_an_expression_that_is_none_is_refused(use, expression):
    text = use.refused("search_files", expression=expression)
    assert "cannot search for" in text and len(text) < 300


def test_a_catastrophic_expression_ends(use):
    use.path(NEW).write_text("a" * 3000 + "\n")
    started = time.monotonic()
    answer = use.tools.use("search_files", {"expression": r"(a*)*(a*)*(.*)\1\2\3b$"})
    assert time.monotonic() - started < 40
    assert answer.error or "nothing matches" in answer.text


def test_more_files_than_one_grep_takes(use):
    each = "d=$(printf '%0200d' $n); mkdir $d; for m in 1 2 3; do : > $d/$m$d; done"
    use("shell", command=f"mkdir many; cd many; for n in $(seq 1 900); do {each}; done")
    assert "narrower pattern" in use.refused("search_files", expression="x")
    assert quoted_part(use("search_files", expression="RowSoftmax", pattern="row_softmax/**"))
    use("shell", command="rm -r many; mkdir flat; touch $(seq -f flat/%g 900)")
    lines = quoted_part(use("list_files", pattern="flat/*")).splitlines()
    assert len(lines) == 301 and lines[-1].endswith("give a narrower pattern")


def test_a_replacement_shows_what_stands_there_now(use):
    lines = use.path().read_text().split("\n")
    at = next(n for n, line in enumerate(lines, 1) if line.startswith("import"))
    text = use("str_replace", path=KERNEL, old=lines[at - 1], new="import one\nimport two")
    assert f"2 lines from line {at}" in text
    shown = numbered(text)
    assert (shown[at], shown[at + 1], shown[at + 2]) == ("import one", "import two", lines[at])
    assert use.path().read_text().split("\n")[at - 1 : at + 1] == ["import one", "import two"]


def test_a_replacement_by_nothing_deletes(use):
    use("create", path=NEW, text="a\nb\n")
    use("str_replace", path=NEW, old="a\nb\n", new="")
    assert use.path(NEW).read_text() == ""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("nowhere", "x", "does not occur"),
        ("      beta = 2", "x", "its first line stands in line 2"),
        ("alpha", "x", "occurs 3 times in row_softmax/new.py (lines 1, 3, 3)"),
        ("aaa", "x", "occurs 2 times in row_softmax/new.py (lines 4, 4)"),
        ("", "x", "old is empty"),
        ("beta", "beta", "nothing would change"),
    ],
)
def test_a_replacement_that_is_not_one(use, old, new, says):
    text = "alpha = 1\n    beta = 2\nalpha = alpha\naaaa\n"
    use("create", path=NEW, text=text)
    assert says in use.refused("str_replace", path=NEW, old=old, new=new)
    assert use.path(NEW).read_text() == text


def test_many_occurrences_are_counted_quickly(use):
    use("create", path=NEW, text="x\n" * 100_000)
    started = time.monotonic()
    text = use.refused("str_replace", path=NEW, old="x", new="y")
    assert "occurs 100000 times" in text and len(text) < 200
    assert time.monotonic() - started < 2


def test_line_ends_of_a_file_are_kept(use):
    use.path(NEW).write_bytes(b"one\r\ntwo\r\nthree\r\n")
    assert list(numbered(use("view", path=NEW)).values()) == ["one", "two", "three"]
    use("str_replace", path=NEW, old="one\ntwo", new="1\n2")
    use("str_replace", path=NEW, old="2", new="2\n2.5")
    use("insert", path=NEW, after=4, text="four")
    assert use.path(NEW).read_bytes() == b"1\r\n2\r\n2.5\r\nthree\r\nfour\r\n"
    use.path(NEW).write_bytes(b"one\r\ntwo\nthree\n")
    use("str_replace", path=NEW, old="two\nthree", new="2\n3")
    assert use.path(NEW).read_bytes() == b"one\r\n2\n3\n"


@pytest.mark.parametrize(
    ("before", "after", "then"),
    [
        ("a\nb\n", 0, "x\na\nb\n"),
        ("a\nb\n", 1, "a\nx\nb\n"),
        ("a\nb\n", 2, "a\nb\nx\n"),
        ("a\nb", 2, "a\nb\nx\n"),
        ("a\nb", 1, "a\nx\nb"),
    ],
)
def test_insert(use, before, after, then):
    use.path(NEW).write_text(before)
    use("insert", path=NEW, after=after, text="x")
    assert use.path(NEW).read_text() == then
    use.path(NEW).write_text(before)
    use("insert", path=NEW, after=after, text="x\n")
    assert use.path(NEW).read_text() == then
    use.path(NEW).write_text(before)
    assert "has 2 lines" in use.refused("insert", path=NEW, after=3, text="x")


def test_a_file_that_exists_is_not_created(use):
    before = use.path().read_text()
    assert "use str_replace" in use.refused("create", path=KERNEL, text="x")
    use("create", path=NEW, text="x = 1\n")
    assert use.path(NEW).read_text() == "x = 1\n" and use.path().read_text() == before


def test_a_file_in_a_new_folder(tmp_path):
    folder = Folder(tmp_path)
    folder.write("a/b/new.py", b"x = 1\n")
    assert folder.files() == [("a/b/new.py", 6)]
    with pytest.raises(BadInput, match="Is a directory"):
        folder.write("a/b", b"")


def test_what_may_not_be_changed(use):
    use.path("LICENSE").write_text("theirs\n")
    for name, given in {
        "create": {"path": "new.py", "text": "x"},
        "str_replace": {"path": "LICENSE", "old": "theirs", "new": "mine"},
        "insert": {"path": "LICENSE", "after": 0, "text": "mine"},
    }.items():
        assert "may not be changed: only" in use.refused(name, **given)
    assert use.path("LICENSE").read_text() == "theirs\n"
    assert not use.path("new.py").exists()


OUTSIDE = [
    "", ".", "..", "../x", "row_softmax/../../x", "/etc/passwd", "row_softmax//softmax.py",
    "row_softmax/", "./row_softmax/softmax.py", ".git/config", "row_softmax/.GIT/config",
    "row_softmax/softmax.py/x", "row_softmax/" + "n" * 300, "n" * 300 + "/x", "d/" * 3000 + "x",
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda p: p[:30] or "empty")
def test_a_path_that_leads_elsewhere(use, path):
    for name, given in {
        "view": {}, "create": {"text": "x"}, "insert": {"after": 0, "text": "x"},
        "str_replace": {"old": "a", "new": "b"},
    }.items():  # fmt: skip
        text = use.refused(name, path=path, **given)
        assert "is not a" in text and len(text) < 400
    if path:
        assert "neither the workspace nor the parent has" in use.refused("restore", path=path)


def test_a_link_is_not_followed(use, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "softmax.py").write_text("secret\n")
    use("shell", command=f"ln -s {secret}/softmax.py row_softmax/link.py; ln -s {secret} linked")
    for path in ("row_softmax/link.py", "linked/softmax.py"):
        assert "secret\n" not in use.refused("view", path=path)
        use.refused("str_replace", path=path, old="secret", new="x")
    assert "link" not in use("list_files")
    assert "nothing matches" in use("search_files", expression="^secret")
    use("shell", command=f"rm -r row_softmax; ln -s {secret} row_softmax")
    use.refused("create", path=NEW, text="x")
    use.refused("view", path=KERNEL)
    assert "symbolic link" in use.refused("build")
    use("restore")
    assert not use.path("row_softmax").is_symlink() and use.path().is_file()
    assert [p.name for p in secret.iterdir()] == ["softmax.py"]
    assert (secret / "softmax.py").read_text() == "secret\n"


def test_a_pipe_blocks_nobody(use):
    use("shell", command="mkfifo row_softmax/pipe.py; rm row_softmax/softmax.py; "
        "mkfifo row_softmax/softmax.py")  # fmt: skip
    assert "is not a file" in use.refused("view", path=KERNEL)
    assert "is not a file" in use.refused("insert", path="row_softmax/pipe.py", after=0, text="x")
    assert "exists" in use.refused("create", path="row_softmax/pipe.py", text="x")
    assert "nothing matches" in use("search_files", expression="RowSoftmax")
    assert "is a pipe" in use.refused("build")
    use("restore", path="row_softmax/pipe.py")
    use("restore", path=KERNEL)
    assert "it builds" in use("build")


def test_a_file_too_big_or_no_text(use):
    most = use.session.max_file_bytes
    assert str(most) in use.refused("create", path=NEW, text="x" * (most + 1))
    assert not use.path(NEW).exists()
    use.path(NEW).write_bytes(b"x" * (most + 1))
    assert f"has {most + 1} bytes" in use.refused("view", path=NEW)
    use.path(NEW).write_bytes(b"caf\xe9\n")
    assert "not UTF-8" in use.refused("view", path=NEW)
    assert "not UTF-8" in use.refused("insert", path=NEW, after=0, text="x")
    assert use.path(NEW).read_bytes() == b"caf\xe9\n"


def test_names_that_are_no_text_are_listed_and_restored(use):
    odd = use.path(os.fsdecode(b"row_softmax/\xff\x1b[2J\n.py"))
    odd.write_text("x")
    text = use("list_files")
    assert "\x1b" not in text and text.encode()
    use("build")
    assert "removed 1 files" in use("restore")
    assert not odd.exists()


def test_restoring_undoes_whatever_a_shell_did(use):
    before = {p: p.read_bytes() for p in use.folder.rglob("*") if p.is_file()}
    use("shell", command="rm row_softmax/__init__.py; rm row_softmax/softmax.py;"
        "mkdir -p row_softmax/softmax.py/full; : > row_softmax/softmax.py/full/x; mkdir .git;"
        ": > stray; mkfifo row_softmax/pipe; ln -s / row_softmax/root; chmod 0 stray")  # fmt: skip
    use.refused("build")
    assert "restored 2 and removed 5 files" in use("restore")
    assert {p: p.read_bytes() for p in use.folder.rglob("*") if p.is_file()} == before
    assert "the same machine code" in use("build")
    assert "restored 0 and removed 0" in use("restore")


def test_restoring_one_file_leaves_the_others(use):
    init = use.path("row_softmax/__init__.py")
    old, text = init.read_text(), use.path().read_text()
    init.write_text("x = 1\n")
    use.path().write_text("x = 2\n")
    use("restore", path=KERNEL)
    assert (use.path().read_text(), init.read_text()) == (text, "x = 1\n")
    use("restore", path="row_softmax/__init__.py")
    assert init.read_text() == old
    assert "neither" in use.refused("restore", path="row_softmax/nothing.py")


def test_restoring_an_earlier_version(use):
    use("create", path=NEW, text="x = 1\n")
    use("restore", rev="2")
    assert use.path().read_text() == "def broken(:\n" and not use.path(NEW).exists()
    use("restore", rev="1", path=KERNEL)
    assert '"rows_per_cta": 2' in use.path().read_text()
    use("restore", rev="0")
    assert '"vector": 8' in use.path().read_text()
    use("restore", rev="best")
    assert '"vector": 4' in use.path().read_text()
    for rev in ("99", "no-such", "--output=x", "^best", "best^{tree}", "x" * 150):
        assert "no revision" in use.refused("restore", rev=rev)


def test_a_deep_folder_breaks_nothing(run):
    deep = "mkdir deep; cd deep; for n in $(seq 1 1500); do mkdir d; cd d; done; : > file"
    with run.session("tests", lambda: False) as session:
        use = Bench(session)
        assert "exit status 0" in use("shell", command=deep)
        use("list_files")
        assert "too deep" in use.refused("build")
        use("restore")
        assert "it builds" in use("build")
        use("shell", command=deep)
    assert not session.folder.exists()


def test_a_shell_works_in_the_workspace(use):
    text = use("shell", command="pwd; echo two > made; echo wrong >&2; exit 3")
    assert text.startswith("exit status 3\n")
    assert quoted_part(text) == f"{use.folder}\nwrong"
    assert use.path("made").read_text() == "two\n"
    assert quoted_part(use("shell", command="python3 -c 'print(6 * 7)'")) == "42"


def test_a_shell_has_no_network(use):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 3)"
        assert not use("shell", command=f'python3 -c "{code}"').startswith("exit status 0")
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_shell_changes_and_sees_nothing_else(use, run, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    (tmp_path / "secret").write_text("sk-ant-file")
    lineage = run.lineage.path
    before = sorted(str(p) for p in lineage.rglob("*"))
    command = (
        f"cat {tmp_path}/secret; echo x > {tmp_path}/made; echo x > {lineage}/HEAD;"
        f"rm -rf {lineage}; cat {lineage}/HEAD; ls ~root/.ssh /home {lineage};"
        "env; cat /proc/*/environ;"
        f"cat /proc/{os.getpid()}/environ; ls -a /root; git --git-dir {lineage} log"
    )
    text = use("shell", command=command)
    assert "sk-ant" not in text and "ref: refs" not in text and "Attempt" not in text
    assert not (tmp_path / "made").exists()
    assert sorted(str(p) for p in lineage.rglob("*")) == before


def test_a_shell_ends_with_its_time_and_leaves_nobody(use):
    shell = Files(use.session, shell_seconds=2).shell
    alive = "while :; do date +%s%N > fresh; mv fresh alive; sleep 0.1; done"
    started = time.monotonic()
    text = shell(f"setsid sh -c '{alive}' & sleep 60")
    assert text.startswith("stopped after 2 seconds") and time.monotonic() - started < 20
    first = use.path("alive").read_text()
    use("shell", command=f"setsid sh -c '{alive}' & sleep 0.5")
    second = use.path("alive").read_text()
    time.sleep(1)
    assert first < second == use.path("alive").read_text()


def test_a_shell_s_output_is_cut_in_the_middle(use):
    text = use("shell", command="echo first; yes 2>&- | head -c 3000000; echo last")
    assert len(text) < 20_000 and "bytes dropped" in text
    assert quoted_part(text).startswith("first\n") and quoted_part(text).endswith("\nlast")


def test_an_answer_keeps_both_ends():
    text = bounded("first " + "é" * 50_000 + " last", 1000)
    assert text.startswith("first é") and text.endswith("é last") and len(text.encode()) < 1100
    assert "99011 bytes left out" in text
    assert bounded("short", 1000) == "short"
