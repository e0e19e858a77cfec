"""What an engine file or an ONNX model is, in some lines: the data behind `smalti inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from smalti.compiler.targets import TARGETS
from smalti.errors import InputError, UnsupportedError
from smalti.frontend.onnx import OnnxModel, load, read_model
from smalti.frontend.onnx.tensors import DTYPE_OF
from smalti.frontend.onnx.weights import ModelTensors
from smalti.fuse import HostRegion, partition
from smalti.graph import Graph
from smalti.rewrite import rewrite
from smalti.runtime.cpu.adapter import available_levels
from smalti.runtime.cpu.compilation import LEAST
from smalti.runtime.engine_file import EngineFile

LISTED_MAX = 12  # names that are shown; of others, how many there are
WIDTH = 12  # columns of the labels
Lines = list[tuple[str, str]]


def engine_report(path: Path) -> str:
    """What an engine file is. Raises EngineError for a damaged one."""
    file = EngineFile(path)
    about, graph, here = file.about, file.graph, available_levels()
    values = sum(entry.bytes for entry in file.parameters.values())
    levels = [f"{name} ({'runs here' if name in here else 'not on this CPU'})"
              for name in file.targets]
    known = sum(bool(entry.sha256) for entry in file.parameters.values())
    sizes = ", ".join(f"{name} {_bytes(size)}" for name, size in file.sizes().items())
    return _text([
        ("file", str(path)), ("format", f"engine file of Smalti {about.smalti}: {sizes}"),
        ("name", graph.name), *_interface(graph), ("precision", about.precision),
        ("code", ", ".join(levels) or "none"),
        ("threads", f"any number; schedules are chosen for {about.threads}"),
        ("weights", f"{len(file.parameters)}, {_bytes(values)}, "
                    f"{'in the file' if file.has_weights else 'to be bound'}"
                    f"{f', hashes of {known} are noted' if known else ''}"),
        *_operators(Counter(node.operation.name for node in graph.nodes)), *_host(graph)])


def onnx_report(path: Path, shapes: Mapping[str, tuple[int, ...] | int]) -> str:
    """What an ONNX file is, and which of it would run as numpy; weights are not read.

    Raises InputError for a file that is no ONNX model.
    """
    source = read_model(path)
    graph = source.proto.graph
    weights = ModelTensors(source.proto, source.folder).weights().values()
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}"
                       for domain, version in source.opsets.items())
    numbers, dtypes = sum(t.size for t in weights), Counter(t.dtype for t in weights)
    lines = [
        ("file", str(path)),
        ("format", f"ONNX, operators {opsets}, by "
                   f"{source.proto.producer_name or 'an unnamed exporter'} "
                   f"{source.proto.producer_version}".rstrip()),
        ("name", graph.name or source.name),
        ("inputs", _listing(map(_declared, source.inputs))),
        ("outputs", _listing(map(_declared, graph.output))),
        ("weights", f"{len(weights)}, {_count(numbers)} numbers: "
                    + (", ".join(f"{n} of {dtype}" for dtype, n in dtypes.most_common())
                       or "none")),
        *_operators(Counter(node.op_type if not node.domain else f"{node.domain}.{node.op_type}"
                            for node in graph.node)),
    ]
    try:
        model = load(path, shapes=shapes)
        lines += _host(model.graph) if model.static else [("compiles", _stages(model))]
    except UnsupportedError as error:
        lines.append(("compiles", str(error)))
    except InputError as error:
        lines.append(("compiles", f"not yet: {error}"))
    return _text(lines)


def _stages(model: OnnxModel) -> str:
    """What waits for values."""
    return "\n".join([f"in stages, while it runs, as {len(model.deferred)} nodes need values:",
                      *(f"{step.name}: {step.node.op_type}" for step in model.deferred)])


def _declared(value) -> str:
    """Name and type of an input or output, as the model states it."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return f"{value.name} {DTYPE_OF.get(tensor.elem_type, 'no tensor')}"
    extents = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"
               for dim in tensor.shape.dim]
    return f"{value.name} {DTYPE_OF.get(tensor.elem_type, '?')}[{', '.join(extents)}]"


def _interface(graph: Graph) -> Lines:
    return [(label, _listing(f"{name} {value.type}" for name, value in values.items()))
            for label, values in (("inputs", graph.inputs), ("outputs", graph.outputs))]


def _operators(counts: Counter[str]) -> Lines:
    text = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    return [("operators", f"{sum(counts.values())}: {text}")]


def _host(graph: Graph) -> Lines:
    """Which operations no kernel computes."""
    regions = partition(rewrite(graph), (), TARGETS[LEAST].functions).regions
    host = Counter(region.operation for region in regions if isinstance(region, HostRegion))
    native = len(regions) - sum(host.values())
    text = ", ".join(f"{name} {count}" for name, count in host.most_common()) or "nothing"
    return [("compiles", f"yes: {native} kernels; as numpy on the host: {text}")]


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def _count(number: int) -> str:
    return f"{number / 1e6:.1f} M" if number >= 1e6 else str(number)


def _listing(texts: Iterable[str]) -> str:
    """The first of some texts, one a line."""
    found = list(texts)
    more = [f"... and {len(found) - LISTED_MAX} more"] * (len(found) > LISTED_MAX)
    return "\n".join([*found[:LISTED_MAX], *more]) or "none"


def _text(lines: Lines) -> str:
    margin = "\n" + " " * WIDTH
    return "\n".join(f"{label:<{WIDTH}}{text.replace(chr(10), margin)}" for label, text in lines)
