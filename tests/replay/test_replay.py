"""Replay itself: which commits are compared, what is said of differences, that texts are stable."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from replay import compare, model_graphs, trees
from replay.corpus import entries
from replay.difference import IncomparableError, compared, diff, summary
from replay.history import Commit, comparisons, git, history_of
from replay.internals import STAGES, WORDS, compiled
from replay.machines import GPU_SETTINGS, X86_SETTINGS, Setting
from replay.trees import Tree, tree_of
from replay.write import file_name

from smalti.graph import Graph

ROOT = Path(__file__).resolve().parents[2]


# ---------------------------------------------------------------------- which commits


def line(*subjects: str) -> list[Commit]:
    """A history, newest first, of commits that are called by their places, oldest 1."""
    return [Commit(str(n), str(n - 1) if n > 1 else "", subject)
            for n, subject in reversed(list(enumerate(subjects, 1)))]


def test_commits_in_a_row_are_one_comparison_with_what_was_before_the_first() -> None:
    found = comparisons(line("first", "a [same]", "b [same]", "c", "d [same]", "e", "f"))
    assert [(each.base, each.head) for each in found] == [("4", "5"), ("1", "3")]
    assert [commit.id for commit in found[1].commits] == ["2", "3"]


def test_comparisons_are_bounded_and_the_newest_come_first() -> None:
    history = line("first", *["a [same]", "b"] * 9)
    assert [each.head for each in comparisons(history, 2)] == ["18", "16"]
    assert comparisons(line("a", "[same] b", "c [same] d")) == []


def test_what_no_parent_is_known_of_has_no_base() -> None:
    (only,) = comparisons(line("imported [same]"))
    assert (only.base, only.head) == ("", "1")


# ---------------------------------------------------------------------- differences


def texts(folder: Path, graphs: dict[str, dict[str, str]], stages: str = "partition code words",
          ) -> Path:
    """A folder as writers make it."""
    folder.mkdir()
    for graph, found in graphs.items():
        (folder / graph).mkdir(parents=True)
        for stage, text in found.items():
            (folder / graph / f"{stage}.txt").write_text(text, encoding="utf-8")
    folder.joinpath("index.txt").write_text("\n".join(["format 1", stages, *graphs, ""]))
    return folder


def test_the_first_stage_that_differs_is_told_with_its_machine(tmp_path: Path) -> None:
    one = "[avx2 f32]\na\nb\n[avx512 f32]\na\nb\n"
    base = texts(tmp_path / "base", {"x": {"partition": one, "code": "1\n"}, "gone": {},
                                     "y": {"partition": one, "words": "why\n"}})
    head = texts(tmp_path / "head", {"x": {"partition": one[:-2] + "c\n", "code": "2\n"},
                                     "y": {"partition": one, "words": "because\n"}, "new": {}})
    report = compared(base, head)
    assert not report.same and (report.words, report.gone, report.added) == (
        ("y",), ("gone",), ("new",))
    (found,) = report.found
    assert (found.graph, found.stage, found.section) == ("x", "partition", "avx512 f32")
    assert diff(base, head, found).splitlines()[-4:] == [" [avx512 f32]", " a", "-b", "+c"]
    assert summary(report) == (
        "1 of 2 graphs differ: 1 first in partition\n"
        "1 graphs differ in explanations alone, which decide nothing: y\n"
        "graphs that are gone: gone\ngraphs that are new: new")


def test_words_and_new_graphs_are_no_difference_but_graphs_that_are_gone_are(tmp_path: Path
                                                                              ) -> None:
    base = texts(tmp_path / "base", {"x": {"code": "1\n", "words": "a\n"}})
    head = texts(tmp_path / "head", {"x": {"code": "1\n", "words": "b\n"}, "y": {}})
    assert compared(base, head).same
    assert not compared(head, base).same


def test_a_long_diff_is_cut_off(tmp_path: Path) -> None:
    base = texts(tmp_path / "base", {"x": {"code": "1\n" * 100}})
    head = texts(tmp_path / "head", {"x": {"code": "2\n" * 100}})
    shown = diff(base, head, compared(base, head).found[0], lines_max=10).splitlines()
    assert len(shown) == 11 and shown[-1] == "..."


def test_folders_of_other_formats_are_refused(tmp_path: Path) -> None:
    base, head = texts(tmp_path / "base", {}), texts(tmp_path / "head", {}, "code")
    with pytest.raises(IncomparableError, match="FORMAT"):
        compared(base, head)


# ---------------------------------------------------------------------- repositories

WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from smalti.codegen.value import VALUE
folder = Path(sys.argv[1])
(folder / "x").mkdir(parents=True)
(folder / "x" / "code.txt").write_text(f"[avx2 f32]\\n{VALUE}\\n")
(folder / "index.txt").write_text("format 1\\ncode\\nx\\n")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty repository."""
    place = tmp_path / "repository"
    place.mkdir()
    git(place, "init", "-q")
    for name, value in (("user.name", "a"), ("user.email", "a@b"), ("commit.gpgsign", "false")):
        git(place, "config", name, value)
    return place


def commit(place: Path, subject: str, files: dict[str, str]) -> str:
    """A commit of some files; its hash."""
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    git(place, "add", "-A")
    git(place, "commit", "-q", "--allow-empty", "-m", subject)
    return git(place, "rev-parse", "HEAD").strip()


VALUE = "src/smalti/codegen/value.py"


def written(value: int) -> dict[str, str]:
    return {**packages("src/smalti", "src/smalti/codegen"), VALUE: f"VALUE = {value}\n",
            "tests/replay/write.py": WRITER, "tests/replay/internals.py": ""}


def packages(*folders: str) -> dict[str, str]:
    """Folders as regular packages, which hide one of the same name that is installed."""
    return {f"{folder}/__init__.py": "" for folder in folders}


def test_marked_commits_that_change_nothing_pass(repository: Path, capsys) -> None:
    commit(repository, "first", written(1))
    commit(repository, "a: moved [same]", {"docs": "a"})
    commit(repository, "b: moved [same]", {"docs": "b"})
    assert compare.main(["--marked"], repository) == 0
    said = capsys.readouterr().out
    assert "2 of the last 3 commits say [same]; the newest 2 are 1 comparisons" in said
    assert "0 of 1 graphs differ" in said


def test_the_commit_that_changed_something_is_found_and_named(repository: Path, capsys) -> None:
    commit(repository, "first", written(1))
    for number in range(3):
        commit(repository, f"fine {number} [same]", {"docs": str(number)})
    guilty = commit(repository, "at fault [same]", {VALUE: "VALUE = 2\n"})
    commit(repository, "fine again [same]", {"docs": "again"})
    assert compare.main(["--marked"], repository) == 1
    said = capsys.readouterr().out
    assert f"{guilty[:10]} says [same], but is not: at fault [same]" in said
    assert "-1\n+2" in said and "x, code (avx2 f32)" in said


def test_a_shallow_clone_says_what_it_cannot_compare(repository: Path, tmp_path: Path,
                                                     capsys) -> None:
    commit(repository, "first", written(1))
    commit(repository, "moved [same]", {})
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth=1", repository.as_uri(), str(clone))
    assert compare.main(["--marked"], clone) == 0
    assert "not compared" in (said := capsys.readouterr().out) and "--deepen" in said


def test_the_working_tree_is_compared_as_it_is_and_left_so(repository: Path, capsys) -> None:
    commit(repository, "first", written(1))
    assert compare.main(["HEAD"], repository) == 0
    repository.joinpath(VALUE).write_text("VALUE = 3\n")
    assert compare.main(["HEAD"], repository) == 1
    assert git(repository, "status", "--porcelain").split() == ["M", VALUE]
    assert [path.name for path in repository.rglob("__pycache__")] == []


def test_what_commits_wrote_is_used_again_and_what_the_working_tree_wrote_is_not(
        repository: Path, tmp_path: Path, capsys) -> None:
    first = commit(repository, "first", written(1))
    options = ["HEAD", "--keep", str(tmp_path / "kept")]
    assert compare.main(options, repository) == 0
    (kept,) = tmp_path.glob(f"kept/*{first}/quick/x/code.txt")
    kept.write_text("[avx2 f32]\n4\n")
    assert compare.main(options, repository) == 1
    repository.joinpath(VALUE).write_text("VALUE = 4\n")
    assert compare.main(options, repository) == 0
    kept.parents[1].joinpath("index.txt").unlink()
    assert compare.main(options, repository) == 1


def test_a_tree_without_a_writer_is_given_the_next_one(repository: Path, tmp_path: Path,
                                                       capsys) -> None:
    first = commit(repository, "first", {
        **packages("src/smalti", "src/smalti/target"),
        "src/smalti/target/value.py": "VALUE = 1\n", "tests/a": ""})
    git(repository, "mv", "src/smalti/target", "src/smalti/codegen")
    moved = commit(repository, "moved [same]", {})
    given = commit(repository, "a writer", written(1))
    assert "writer of " + given[:10] in tree_of(repository, first, given, tmp_path / "t").name
    assert "import VALUE" in (tmp_path / "t/tests/replay/write.py").read_text()
    assert "smalti.target" in (tmp_path / "t/tests/replay/write.py").read_text()
    assert compare.main([first, given], repository) == 0
    assert compare.main([moved, given], repository) == 0
    assert compare.main([first, given, "--writer", given], repository) == 0


def test_where_a_writer_fails_the_newest_corpus_is_used_for_both(repository: Path, capsys) -> None:
    broken = commit(repository, "a corpus that cannot be written", {
        **written(1), "tests/replay/write.py": "from smalti.moved import VALUE\n"})
    changed = commit(repository, "still [same]", {VALUE: "VALUE = 2\n"})
    mended = commit(repository, "a corpus that can", written(2))
    assert compare.main(["--marked"], repository) == 1
    said = capsys.readouterr().out
    assert f"with the corpus of {mended[:10]} for both" in said and "No module named" in said
    assert f"{changed[:10]} says [same], but is not" in said
    assert compare.main([broken, "--writer", mended], repository) == 1
    repository.joinpath(VALUE).write_text("VALUE = 1\n")
    assert compare.main([broken, "--writer", mended], repository) == 0


def test_a_writer_that_fails_and_commits_that_are_none_are_told(repository: Path, capsys) -> None:
    commit(repository, "first", written(1))
    commit(repository, "broken", {VALUE: "VALUE = unknown\n"})
    assert compare.main(["HEAD~1", "HEAD"], repository) == 2
    assert "name 'unknown' is not defined" in capsys.readouterr().err
    assert compare.main(["nowhere"], repository) == 2
    assert "nowhere" in capsys.readouterr().err


def test_history_follows_first_parents(repository: Path) -> None:
    commit(repository, "first", {"a": "1"})
    commit(repository, "second [same]", {"a": "2"})
    found = history_of(repository, "HEAD")
    assert [each.subject for each in found] == ["second [same]", "first"]
    assert found[0].parent == found[1].id and found[0].same and not found[1].parent


# ---------------------------------------------------------------------- the corpus


def test_every_machine_is_met_and_no_two_graphs_share_a_folder() -> None:
    for size in compare.SIZES:
        corpus = list(entries(size))
        folders = [file_name(entry.name) for entry in corpus]
        assert len(set(folders)) == len(folders)
        met = {setting for entry in corpus for setting in entry.settings}
        assert met >= {*X86_SETTINGS, *GPU_SETTINGS}


def test_every_small_graph_of_the_corpus_can_be_made() -> None:
    """A part of a family that takes another shape than others would end each writing."""
    for name, graph in model_graphs.tiny().items():
        assert graph().outputs, name


def test_stages_tell_a_change_where_it_is_made() -> None:
    g = Graph("double")
    g.output("y", g.apply("silu", g.input("x", (4, 64))))
    for setting in (X86_SETTINGS[0], GPU_SETTINGS[0], GPU_SETTINGS[1]):
        found = compiled(g, setting, (), False)
        assert [stage for stage in STAGES if found.get(stage)] == [
            stage for stage in STAGES[2:] if stage != "weights" or found[stage]]
        assert found == compiled(g, setting, (), False)
        detailed = compiled(g, setting, (), True)
        assert len(detailed["code"]) > len(found["code"])
        assert {s: t for s, t in detailed.items() if s != "code"} == {
            s: t for s, t in found.items() if s != "code"}
    narrow = compiled(g, replace(X86_SETTINGS[0], target="avx2"), (), False)
    wide = compiled(g, Setting("avx512"), (), False)
    assert narrow["code"] != wide["code"] and narrow["partition"] == wide["partition"]


def test_code_that_differs_is_told_of_the_function_that_it_is_of() -> None:
    """The constants of a function lie in front of it, behind the one before."""
    def graph(slope: float) -> Graph:
        g = Graph("two kernels")
        x = g.apply("softmax", g.input("x", (4, 64)), axis=-1)
        g.output("y", g.apply("softmax", g.apply("exp", x * slope), axis=-1))
        return g

    one, other = (compiled(graph(slope), X86_SETTINGS[0], (), False)["code"]
                  for slope in (2.0, 3.0))
    assert len(one) == len(other) > 2
    assert one[0] == other[0] and one[1:] != other[1:]


def test_what_a_machine_has_no_room_for_is_a_line() -> None:
    g, wide = Graph("large"), (1 << 15, 1 << 12)
    g.output("y", g.apply("concat", *(g.input(f"x{i}", wide) for i in range(4)), axis=1) * 2.0)
    found = compiled(g, Setting("vulkan of the least"), (), False)
    assert found["code"] == ["refused"] and found[WORDS]


@pytest.mark.sweep
def test_two_processes_write_the_same_bytes_whatever_their_hashes(tmp_path: Path) -> None:
    graphs = ("tokens", "linear residual", "schedules of a softmax", "onnx Softmax", "sd1 text")
    running = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(
            str(ROOT / name) for name in trees.PATHS)}
        command = [sys.executable, str(ROOT / trees.FOLDER / trees.WRITER), str(tmp_path / seed)]
        command += [word for name in graphs for word in ("--only", name)]
        running.append(subprocess.Popen(command, env=environment))
    assert [process.wait() for process in running] == [0, 0]
    first, second = (sorted(path for path in (tmp_path / seed).rglob("*") if path.is_file())
                     for seed in "12")
    assert len(first) > 5 * len(graphs)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    report = compared(tmp_path / "1", tmp_path / "2")
    assert report.same and report.graphs == len(graphs)


def test_an_unknown_graph_is_refused(tmp_path: Path) -> None:
    tree = Tree(ROOT, "here")
    process = tree.start(tmp_path / "place" / "out", "quick", ["no such graph"])
    with pytest.raises(trees.WriterError, match="no graph no such graph"):
        tree.finished(process)
