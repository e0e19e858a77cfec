"""Style that a machine can judge. Each rule is one test; a failure lists every place."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from syntax import functions, nodes, tree

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "smalti"

WIDTH_MAX = 100
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600

# Top to bottom: a layer imports only itself and what stands above it.
LAYERS = (
    "dataclass", "errors", "cores", "settings", "replacement", "claim", "graph", "frontend",
    "rewrite", "kernel", "fuse", "schedule", "machine", "tune", "codegen", "compiler", "runtime",
    "nn", "models", "families", "checkpoint", "fetch", "diffusion", "cluster", "batch", "server",
    "export", "benchmark", "dojo", "cli",
)

# Modules that something other than an import reaches: the console script and `python -m smalti`.
ENTRY_POINTS = {"smalti", "smalti.__main__", "smalti.cli.main"}
# Modules that are looked for in their folders: the records of model families, and of targets.
FOUND = re.compile(r"smalti\.(families\.records\.\w+|codegen\.\w+\.target)")


def python_files(*folders: str) -> list[Path]:
    """All Python files under these folders of the repository."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def written_files() -> list[Path]:
    """Everything that people write: code, tests, benchmarks, documentation, settings."""
    texts = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *(ROOT / "docs").rglob("*.md"),
             *(ROOT / ".ci").iterdir(), ROOT / "NOTICE"]
    return [*python_files("src", "tests", "bench", "training"), *sorted(texts)]


def place(path: Path, line: int) -> str:
    """`file:line` relative to the repository."""
    return f"{path.relative_to(ROOT)}:{line}"


def module_name(path: Path) -> str:
    """The dotted name of a module of the package."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in python_files("src")}


@cache
def imported(path: Path) -> dict[str, int]:
    """Modules of the package that a file imports, each with a line.

    Imports inside functions and imports for types only count too, and so do modules that are named
    to be loaded on first use.
    """
    found: dict[str, int] = {}
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            if "smalti.__version__" in inner:  # a constant, there before anything else is
                inner.remove("smalti.__version__")
            submodules = [name for name in inner if name in MODULES]
            names = submodules if len(submodules) == len(inner) else [node.module, *submodules]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if "." in node.value and node.value in MODULES else []
        else:
            continue
        for name in names:
            if name == "smalti" or name.startswith("smalti."):
                found.setdefault(name, node.lineno)
    return found


def test_lines_fit_the_width() -> None:
    wide = [place(path, number) for path in written_files() if path.suffix != ".md"
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if len(line) > WIDTH_MAX]
    assert not wide, f"lines of more than {WIDTH_MAX} columns: {wide}"


def table_lines(module: ast.Module) -> int:
    """Lines of literal tables and of imports at the top of a module; they do not count as code."""
    literals = (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Constant)
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in module.body
               if isinstance(node, ast.Import | ast.ImportFrom)
               or isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, literals))


def test_files_are_short() -> None:
    long = []
    for path in python_files("src", "tests", "bench", "training"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES_MAX and (lines := lines - table_lines(tree(path))) > FILE_LINES_MAX:
            long.append(f"{path.relative_to(ROOT)}: {lines}")
    assert not long, f"files of more than {FILE_LINES_MAX} lines: {long}"


@pytest.mark.parametrize("folder", [
    "src", pytest.param("tests", marks=pytest.mark.sweep), "bench", "training"])
def test_functions_are_short(folder: str) -> None:
    long = []
    for path in python_files(folder):
        for node in functions(tree(path)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                long.append(f"{place(path, node.lineno)} {node.name}: {lines}")
    assert not long, f"functions of more than {FUNCTION_LINES_MAX} lines: {long}"


def test_the_page_is_tidy_too() -> None:
    """Modules of the page, as written by hand: width, length of files and of functions."""
    wrong = []
    for path in sorted([*(SOURCE / "server/page").glob("*.js"),
                        *(SOURCE / "server/page").glob("*.css")]):
        lines, start = path.read_text(encoding="utf-8").splitlines(), 0
        wrong += [f"{place(path, number)}: {len(line)} columns"
                  for number, line in enumerate(lines, 1) if len(line) > WIDTH_MAX]
        if len(lines) > FILE_LINES_MAX:
            wrong.append(f"{path.relative_to(ROOT)}: {len(lines)} lines")
        for number, line in enumerate(lines, 1):
            if re.match(r"(export )?(async )?function", line):
                start = number
            elif line == "}" and start:
                if number - start >= FUNCTION_LINES_MAX:
                    wrong.append(f"{place(path, start)}: a function of {number - start + 1} lines")
                start = 0
    assert not wrong, f"too wide or too long: {wrong}"


def layer_of(module: str) -> str:
    """The layer that a module belongs to; the package itself and `__main__` stand below all."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else "top"


def test_layers_import_only_what_stands_above() -> None:
    order = {name: number for number, name in enumerate((*LAYERS, "top"))}
    wrong = []
    for module, path in MODULES.items():
        own = layer_of(module)
        assert own in order, f"{module} is in no layer; add its folder to LAYERS where it belongs"
        for name, line in imported(path).items():
            other = layer_of(name)
            public = name == "smalti" and own == "cli"  # the command line is a user of the API
            if order.get(other, -1) > order[own] and not public:
                wrong.append(f"{place(path, line)}: {own} imports {name}")
    assert not wrong, "imports from a layer below:\n" + "\n".join(wrong)


# Circles of imports that are still to be dissolved: this list only gets shorter. Forms import the
# module that prints them, and that module imports the form.
CIRCLES = (
    {"codegen.gpu.form", "codegen.gpu.text"},
    {"graph.graph", "graph.text"},
    {"kernel.form", "kernel.text"},
)


def circles() -> Iterator[set[str]]:
    """Sets of modules that import each other, each without the name of the package."""
    graph = {module: {name for name in imported(path) if name in MODULES and name != module}
             for module, path in MODULES.items()}
    reached: dict[str, set[str]] = {}
    for module in graph:
        found, waiting = set(), [module]
        while waiting:
            new = graph[waiting.pop()] - found
            found |= new
            waiting.extend(new)
        reached[module] = found
    for module in sorted(graph):
        circle = {name for name in reached[module] if module in reached[name]}
        if circle and module == min(circle):
            yield {name.removeprefix("smalti.") for name in circle}


def test_modules_import_in_no_circle() -> None:
    new = [sorted(circle) for circle in circles()
           if not any(circle <= known for known in CIRCLES)]
    assert not new, f"modules that import each other: {new}"


def test_architecture_tells_the_order_of_layers() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    told = re.search(r"imports only layers that come before it in this list: ([a-z,\s]+)\.", text)
    assert told, "ARCHITECTURE.md no longer lists the layers"
    assert tuple(re.split(r",\s+", told[1])) == LAYERS


def test_no_module_is_dead() -> None:
    users = [*MODULES.values(), *python_files("bench", "training")]
    used = {name for path in users for name in imported(path) if MODULES.get(name) != path}
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    for name in list(used):  # importing a.b.c also runs a and a.b
        while "." in name:
            name = name.rpartition(".")[0]
            if name in packages:
                used.add(name)
    found = {name for name in MODULES if FOUND.fullmatch(name)}
    dead = sorted(set(MODULES) - used - ENTRY_POINTS - found)
    assert not dead, f"modules that nothing imports: {dead}"


def names_of(module: ast.Module) -> set[str] | None:
    """What can be imported from a module; None where it makes names when they are asked for."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return None if "__getattr__" in names else names


def test_tests_and_benchmarks_import_what_exists() -> None:
    known: dict[str, set[str] | None] = {}
    absent = []
    for path in python_files("tests", "bench", "training"):
        for node in nodes(path):
            module = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
            if module is None or module.partition(".")[0] != "smalti":
                continue
            if module not in MODULES:
                absent.append(f"{place(path, node.lineno)}: {module}")
                continue
            if module not in known:
                known[module] = names_of(tree(MODULES[module]))
            names = known[module]
            absent += [f"{place(path, node.lineno)}: {module}.{alias.name}" for alias in node.names
                       if names is not None and alias.name not in names
                       and f"{module}.{alias.name}" not in MODULES]
    assert not absent, "imports of what is not there:\n" + "\n".join(absent)


def test_environment_is_read_in_one_place() -> None:
    readers = []
    for path in python_files("src"):
        if path == SOURCE / "settings.py":
            continue
        for node in nodes(path):
            attribute = isinstance(node, ast.Attribute) and node.attr in (
                "environ", "environb", "getenv", "getenvb")
            if attribute:
                readers.append(place(path, node.lineno))
    assert not readers, f"the environment is read outside settings.py: {readers}"


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches everything and does not raise again."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = any(kind is None or getattr(kind, "id", "") in ("Exception", "BaseException")
                for kind in kinds)
    last = handler.body[-1]
    return broad and not (isinstance(last, ast.Raise) and last.exc is None)


def test_no_exception_is_caught_broadly() -> None:
    broad = [place(path, node.lineno) for path in python_files("src", "tests", "bench")
             for node in nodes(path)
             if isinstance(node, ast.ExceptHandler) and is_broad(node)]
    assert not broad, f"broad excepts that do not raise again: {broad}"


def test_no_note_to_self_is_left() -> None:
    words = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
    left = [place(path, number) for path in written_files()
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if words.search(line)]
    assert not left, f"notes to self: {left}"


def test_every_module_has_a_home_of_its_own() -> None:
    homeless = {"utils", "util", "common", "helpers", "helper", "misc"}
    versioned = re.compile(r"(^|_)(v\d+|new|old|legacy)(_|$)")
    published = {"smalti.models.mobilenet_v2"}  # a model that its authors named so
    wrong = [name for name in MODULES.keys() - published
             if homeless & set(name.split(".")) or versioned.search(name.rpartition(".")[2])]
    assert not wrong, f"modules whose names say nothing: {wrong}"


def test_a_class_name_means_one_class() -> None:
    homes = defaultdict(list)
    for module, path in MODULES.items():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    several = {name: found for name, found in homes.items() if len(found) > 1}
    assert not several, f"names of more than one class: {several}"


PARAMETERS_MAX = 12


def test_public_functions_take_few_parameters() -> None:
    many = []
    for path in MODULES.values():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                count = sum(parameter.arg not in ("self", "cls") for parameter in (
                    *node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
                if count > PARAMETERS_MAX:
                    many.append(f"{place(path, node.lineno)} {node.name}: {count}")
    assert not many, f"functions of more than {PARAMETERS_MAX} parameters: {many}"


def defined(path: Path) -> set[str]:
    """What a module has a name for at its top, and the modules inside it."""
    found = {inner.stem for inner in path.parent.iterdir() if path.name == "__init__.py"}
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_lists_of_public_names_are_true_and_sorted() -> None:
    """Constants first, then classes, then functions: the order that ruff gives imports."""
    wrong = []
    for module, path in MODULES.items():
        for node in tree(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                if not isinstance(node.value, ast.List | ast.Tuple):
                    continue  # computed of what is there
                names = list(ast.literal_eval(node.value))
                wrong += [f"{module} has no {name}" for name in set(names) - defined(path)]
                if names != sorted(names, key=lambda name: (
                        not name.isupper(), not name[0].isupper(), name)):
                    wrong.append(f"{module} is not sorted")
    assert not wrong, f"lists of public names: {wrong}"


# Numeric constants that do not say what they rest on yet: this number only gets smaller.
BARE_CONSTANTS_MAX = 5


def is_numeric(value: ast.expr | None) -> bool:
    """Whether an expression is made of numbers only."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.UnaryOp):
        return is_numeric(value.operand)
    if isinstance(value, ast.BinOp):
        return is_numeric(value.left) and is_numeric(value.right)
    return isinstance(value, ast.Tuple) and bool(value.elts) and all(map(is_numeric, value.elts))


def numeric_constants(path: Path) -> list[ast.Assign | ast.AnnAssign]:
    """What gives names of capital letters to numbers at the top of a module."""
    return [node for node in tree(path).body if isinstance(node, ast.Assign | ast.AnnAssign)
            and is_numeric(node.value) and re.fullmatch(
                r"[A-Z0-9_(), ]+", ast.unparse(node.targets[0] if isinstance(node, ast.Assign)
                                               else node.target))]


def is_explained(path: Path, constant: ast.Assign | ast.AnnAssign) -> bool:
    """Whether a text follows a constant, or a comment stands on its line or above it; constants
    without an empty line between them share theirs."""
    lines = path.read_text(encoding="utf-8").splitlines()
    last = constant.end_lineno or constant.lineno
    above = next((line for line in reversed(lines[:constant.lineno - 1])
                  if not re.match(r"[A-Z]", line)), "")
    below = next((line for line in lines[last:] if not re.match(r"[A-Z]", line)), "")
    return "#" in "".join(lines[constant.lineno - 1:last]) or above.startswith("#") or (
        below.startswith('"""'))


def test_numeric_constants_say_what_they_are() -> None:
    bare = [f"{place(path, constant.lineno)}: {ast.unparse(constant)}" for path in MODULES.values()
            for constant in numeric_constants(path) if not is_explained(path, constant)]
    listed = "\n".join(bare)
    assert len(bare) <= BARE_CONSTANTS_MAX, (
        f"{len(bare)} numeric constants without a word on them:\n{listed}")


def test_public_things_have_docstrings() -> None:
    bare = []
    for name, path in MODULES.items():
        module = tree(path)
        if not ast.get_docstring(module):
            bare.append(name)
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                if any(ast.unparse(d).startswith(("rule(", "host(")) for d in node.decorator_list):
                    continue  # the operators that it names are specified by ONNX
                if not ast.get_docstring(node):
                    bare.append(f"{name}.{node.name}")
    assert not bare, f"public modules, classes and functions without a docstring: {bare}"


# The ways to leave a test out: a machine without the driver that it runs on, or a package that has
# no wheel for it; told with what brings one, and shown at the end of a run.
SANCTIONED = ((ROOT / "tests" / "material" / "gpu_devices.py", "absent"),
              (ROOT / "tests" / "material" / "clusters.py", "need_ray"))


def test_no_test_is_skipped() -> None:
    skipping = re.compile(r"\b(mark\.skip|skipif|pytest\.skip|importor" + r"skip|mark\.xfail)")
    sanctioned = {place(path, number) for path, name in SANCTIONED for node in tree(path).body
                  if getattr(node, "name", "") == name
                  for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    found = [where for path in python_files("tests")
             for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
             if skipping.search(line) and path != Path(__file__)
             and (where := place(path, number)) not in sanctioned]
    assert not found, f"skipped tests: {found}"
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"-rs"' in settings, "pytest does not say which tests it left out, and why"


# What tests may be called beside the module that they test: compared with what, or run on what.
ASPECTS = re.compile(r"_(against_\w+|on_devices|natively)$")
# Tests of what several modules do together; a test of one module is called as that module is.
TOPICS = frozenset("""
benchmark/arm64_kernels
benchmark/gpu_lab
benchmark/gpu_script
benchmark/hybrid
benchmark/psnr
checkpoint/adapters/against_peft
checkpoint/adapters/changes
checkpoint/adapters/families_against_peft
checkpoint/adapters/hostile
checkpoint/families
checkpoint/refusals
checkpoint/upscalers
cli/adapters
cli/change
cli/commands
cli/models
cli/named_models
cli/process
codegen/gpu/forms_on_devices
codegen/spirv/run
codegen/added_operation
codegen/added_target
codegen/cpu/against_kernels
codegen/cpu/pooling
diffusion/added_sampler
diffusion/against_diffusers_pipeline
diffusion/devices
diffusion/families
diffusion/few_steps
diffusion/families_against_diffusers
diffusion/flux3_against_diffusers
diffusion/memory
diffusion/quantised
diffusion/qwen_image_control
diffusion/transformer_control
diffusion/z_image_control
dojo/dojo
export/ggml/against_ggml
families/new_family
fetch/faults
frontend/onnx/damaged_files
frontend/onnx/exports
frontend/onnx/half_exports
frontend/onnx/node_tests
frontend/onnx/operators
frontend/onnx/shipped_models
frontend/onnx/versions
graph/shape_rules
machine/fitting
models/models
models/models_against_peers
models/models_natively
models/flux_unit
models/transformer_controlnets
models/transformers_against_peers
nn/blocks
runtime/cpu/turns
runtime/gpu/models
runtime/compiler
runtime/engine_devices
server/attacks
server/page/looks
server/page/visit
""".split())


def test_tests_lie_where_their_module_does() -> None:
    """The test of smalti/a/b.py, or b.js, is tests/a/test_b.py or the folder tests/a/b; that of
    training/b.py is tests/training/test_b.py."""
    lost, topics = [], set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        folder = path.parent.relative_to(ROOT / "tests")
        if folder.parts and folder.parts[0] not in ("fuzz", "programs", "replay"):
            name = ASPECTS.sub("", path.stem.removeprefix("test_"))
            above = ROOT if folder.parts[0] == "training" else SOURCE
            home, topic = above / folder / name, path.stem.removeprefix("test_")
            topics.add(f"{folder.as_posix()}/{topic}")
            found = home.is_dir() or any(
                home.with_suffix(ending).exists() for ending in (".py", ".js"))
            if not found and f"{folder.as_posix()}/{topic}" not in TOPICS:
                lost.append(str(path.relative_to(ROOT)))
    assert not lost, f"tests that are called as no module is: {lost}"
    assert topics >= TOPICS, f"topics without a test: {TOPICS - topics}"


def test_no_path_of_one_machine_is_written_down() -> None:
    private = re.compile(r"(?<![\w.])/(home|root|work|Users|mnt|opt)/\w")
    found = [f"{place(path, number)}: {line.strip()}" for path in written_files()
             for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
             if private.search(line)]
    assert not found, f"absolute paths of one machine: {found}"


def test_no_package_registry_is_named() -> None:
    """Where packages come from is a setting of the system that installs them."""
    hosts = re.compile("|".join([
        r"debian\.(org|net)", r"ubuntu\.com", r"pypi\.org", r"pythonhosted", r"pytorch\.org/whl",
        r"anaconda\.org", r"npmjs\.(org|com)", r"crates\.io", r"rubygems", r"repo\.maven"]))
    found = [f"{place(path, number)}: {line.strip()}" for path in written_files()
             for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
             if hosts.search(line) and path != Path(__file__)]
    assert not found, f"hosts of package registries: {found}"


# ---------------------------------------------------------------------- documentation

SETUP = ('pip install . && smalti generate "a red apple" -o apple.png',
         'pip install ".[test]" && pytest')


def test_readme_starts_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert tuple(lines[:2]) == SETUP


def test_ci_takes_its_commands_from_readme() -> None:
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in text and 'eval "${commands[0]}"' in text
    assert 'eval "${commands[1]}"' in text
    steps = ("pytest -m sweep", "mypy", "ruff check src tests bench training", "pytest -m peers")
    assert all(f"\n{step}\n" in text for step in steps)


def test_the_type_checker_reads_every_module() -> None:
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert checked["files"] == ["src/smalti"]
    left_out = [each["module"] for each in checked["overrides"] if "ignore_errors" in each]
    assert not left_out


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_documents_name_only_commands_and_options_that_exist(path: Path) -> None:
    from smalti.cli.main import root

    known = {name: {word for each in (command, *getattr(command, "commands", {}).values())
                    for parameter in each.params for word in parameter.opts}
             for name, command in root.commands.items()}
    own = {word for parameter in root.params for word in parameter.opts} | {"--help"}
    text = path.read_text(encoding="utf-8")
    for line in re.findall(r"(?:^|[`&(] ?)smalti( [^`\n]+)", text, flags=re.MULTILINE):
        words = re.sub(r'"[^"]*"|#.*', "", line).split("&&")[0].split()
        if not words or words[0].startswith("-"):
            assert set(words) <= own, f"{path.name}: smalti{line}"
            continue
        assert words[0] in known, f"{path.name} names the command {words[0]!r}: smalti{line}"
        options = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
        unknown = options - known[words[0]] - {"--help"}
        assert not unknown, f"{path.name} names the options {sorted(unknown)}: smalti{line}"


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_documents_link_only_to_files_that_exist(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    missing = [link for link in links
               if "://" not in link and not (path.parent / link).exists()]
    assert not missing, f"{path.name} links to files that do not exist: {missing}"


def named_modules(text: str) -> set[str]:
    """Python files that a document names between back quotes, but those that it says how to add:
    what stands in blocks of code is none of them."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`(?:python (?:-m pytest )?)?([\w./-]+\.py)(?:::\w+)?[^`\n]*`", prose))


@pytest.mark.parametrize("path", [*documents(), ROOT / "bench" / "README.md"],
                         ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_documents_name_only_modules_that_exist(path: Path) -> None:
    """By their path in the package or the repository; a name alone, by that of any file."""
    homes = [*python_files("src", "tests", "bench", "training")]
    absent = [name for name in named_modules(path.read_text(encoding="utf-8"))
              if not any(f"/{home.relative_to(ROOT)}".endswith(f"/{name}") if "/" not in name
                         else home in (SOURCE / name, ROOT / name) for home in homes)]
    assert not absent, f"{path.name} names files that are not there: {sorted(absent)}"


def test_the_glossary_names_folders_that_exist_and_each_word_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$",
                      (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    rows = [row for row in rows if row[0] not in ("word", "---")]
    folders = {name for _, where in rows for name in re.findall(r"`([^`]+)/`", where)}
    missing = sorted(name for name in folders if not (SOURCE / name).is_dir())
    assert not missing, f"docs/glossary.md names folders that are not there: {missing}"
    words = [word.strip().lower() for names, _ in rows for word in names.split(",")]
    twice = sorted({word for word in words if words.count(word) > 1})
    assert len(rows) > 60 and not twice, f"docs/glossary.md has these words twice: {twice}"
