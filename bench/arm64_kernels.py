"""What LLVM's machine-code analyser says of the inner loops of micro-kernels.

    python bench/arm64_kernels.py                     # all cores, as a table
    python bench/arm64_kernels.py --cores neoverse_v1 --level neon
    python bench/arm64_kernels.py --cores znver4 --level avx2 --measure

No computer with an AArch64 CPU was at hand, so no time is measured: `llvm-mca` (Debian's llvm-22,
or one that `--mca` names) simulates a core by LLVM's model of it, on the machine code of the loop
that does most multiply-adds of each kernel. The share of the peak is the multiply-adds of an
iteration, over those that the core's units could do in the clocks of it; everything lies in the
first-level cache. For the x86 CPU of this computer `--measure` runs the kernels, too, so that the
two shares can be compared: the measured one has all of the kernel, the analysed one its inner loop.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import LEVELS, level
from smalti.compiler.module import Launch, Module
from smalti.compiler.options import Options
from smalti.compiler.passes import compiled
from smalti.compiler.targets import TARGETS
from smalti.graph import Graph
from smalti.runtime.cpu import probes
from smalti.runtime.cpu.program import NativeProgram

ASKED = 0.85
"""The share of the multiply-add peak that is asked of `PRODUCTS` on the cores that are `asked`."""
ITERATIONS = 200
"""Iterations of a loop that are simulated: so many that its start does not matter."""
TURNS = 10
"""How often a kernel and the peak are measured, in turns; the fastest of each counts."""
PEAK_TILES = 10
"""Tiles of a run that measures the peak."""
TOOLS = ("llvm-mca-22", "llvm-mca-21", "llvm-mca-20", "llvm-mca-19", "llvm-mca")
"""Names of the analyser, newest first: models of cores have become better with every version."""
MULTIPLY_ADDS = re.compile(
    r"\b(?:v?fn?madd\w*|vfn?m(?:add|sub)\w+|vdpbf16ps|fml[as]l?2?|bfmmla|bfdot|bfmlal[bt]|[su]mmla|"
    r"usmmla|[su]dot|usdot|sudot)\b")
"""Instructions that multiply and add vectors, in the syntax of LLVM."""


@dataclass(frozen=True)
class CpuCore:
    """A core as LLVM calls it (`model`), the vector multiply-adds that it does in a clock, and
    whether the share of the peak is asked of it; `note` says where the model is not the core.
    `whole` is how many multiply-adds of two whole vectors the model starts in a clock, where these
    are fewer than those by lane."""

    model: str
    pipes: float
    asked: bool = False
    triple: str = "aarch64"
    note: str = ""
    whole: float = 0.0

    def peak(self, kernel: str) -> float:
        """Multiply-adds in a clock of the kind that a kernel uses."""
        return self.whole if self.whole and kernel in WHOLE else self.pipes


# Pipes: Arm's software optimization guides of the cores; for Apple's, measurements by Dougall
# Johnson (https://dougallj.github.io/applecpu/firestorm-simd.html); for x86, Agner Fog's tables.
CORES = {
    "cortex_a55": CpuCore("cortex-a55", 2, note="in order; LLVM has it start two a "
                          "clock, of which Arm's guide says nothing"),
    "cortex_a76": CpuCore("neoverse-n1", 2, True, note="N1's model, which is the same core; LLVM "
                          "takes that of the older A57 for the A76"),
    "neoverse_n1": CpuCore("neoverse-n1", 2),
    "neoverse_n2": CpuCore("neoverse-n2", 2),
    "neoverse_v1": CpuCore("neoverse-v1", 4, True),
    "neoverse_v2": CpuCore("neoverse-v2", 4, True),
    "neoverse_v3": CpuCore("neoverse-v3", 4),
    "apple_m1": CpuCore("apple-m1", 3, True, note="LLVM's model is that of the A7 (2013), of three "
                        "pipes, two of which multiply whole vectors and add them; the M1 to M4 "
                        "have four, for all", whole=2),
    "znver4": CpuCore("znver4", 2, triple="x86_64", note="512-bit vectors take two clocks"),
    "znver5": CpuCore("znver5", 2, triple="x86_64"),
    "skylake_avx512": CpuCore("skylake-avx512", 2, triple="x86_64"),
}


@dataclass(frozen=True)
class Instruction:
    """An instruction: the byte where it starts, its text, and where it jumps to."""

    at: int
    text: str
    target: int | None = None


@dataclass(frozen=True)
class Analysis:
    """What the analyser says of a loop: clocks and instructions of an iteration."""

    clocks: float
    instructions: int


def disassembled(tool: str, code: bytes, core: CpuCore) -> list[Instruction]:
    """The instructions of `code` up to its return, by LLVM's disassembler beside `tool`."""
    asked = [tool.replace("llvm-mca", "llvm-mc"), "--disassemble", "--show-encoding",
             f"-triple={core.triple}", f"-mcpu={core.model}"]
    if core.triple == "aarch64":
        asked.append("-mattr=+all")
    text = subprocess.run(asked, input=" ".join(f"{byte:#04x}" for byte in code), text=True,
                          capture_output=True, check=True).stdout
    return list(instructions(text))


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of what the disassembler wrote. A jump is told as a distance: on AArch64
    from its start, on x86 from its end."""
    at = 0
    for line in text.splitlines():
        match = re.match(r"\t(.*?)\s+(?:#|//) encoding: \[(.*)\]", line)
        if match is None:
            continue
        words, length = match[1].replace("\t", " "), match[2].count(",") + 1
        jump = re.match(r"(?:j\w+|b|b\.\w+|cbn?z \w+,|tbn?z \w+, #\d+,) #?(-?\d+)$", words)
        from_end = length if " # encoding" in line else 0
        target = at + from_end + int(jump[1]) if jump else None
        yield Instruction(at, words, target)
        if words.split()[0] in ("ret", "retq"):
            return
        at += length


def loops(code: Sequence[Instruction]) -> list[list[Instruction]]:
    """The bodies of the innermost loops."""
    spans = [(i.target, i.at) for i in code if i.target is not None and i.target <= i.at]
    inner = [(a, b) for a, b in spans if not any(
        (c, d) != (a, b) and a <= c and d <= b for c, d in spans)]
    return [[i for i in code if a <= i.at <= b] for a, b in inner]


def most_multiplying(code: Sequence[Instruction]) -> list[Instruction]:
    """The innermost loop with most multiply-adds; empty if none has any."""
    found = max(loops(code), key=multiply_adds, default=[])
    return found if multiply_adds(found) else []


def executed(body: Sequence[Instruction]) -> list[Instruction]:
    """What of a loop runs where no condition holds but that of its end: not what a jump without a
    condition steps over, as the zeros of sums that begin outside of an image."""
    found, behind = [], 0
    for i in body:
        if i.at >= behind:
            found.append(i)
            if i.text.split()[0] in ("b", "jmp") and i.target is not None:
                behind = i.target
    return found


def multiply_adds(body: Sequence[Instruction]) -> int:
    """How many instructions multiply and add."""
    return sum(bool(MULTIPLY_ADDS.search(i.text)) for i in body)


def products(kernel: str, body: Sequence[Instruction]) -> int:
    """How many instructions of a kernel's loop are vectors of its products: those that multiply and
    add, and where sums begin with a product, those that multiply."""
    begun = sum(i.text.startswith("fmul ") for i in body) if kernel in BEGUN else 0
    return multiply_adds(body) + begun


def analysed(tool: str, body: Sequence[Instruction], core: CpuCore) -> Analysis:
    """What the analyser says of a loop; jumps are left out, as their prediction is."""
    lines = [i.text for i in body if i.target is None]
    asked = [tool, f"-mtriple={core.triple}", f"-mcpu={core.model}", f"-iterations={ITERATIONS}"]
    if core.triple == "aarch64":
        asked.append("-mattr=+all")
    text = subprocess.run(asked, input="\n".join(lines), text=True, capture_output=True,
                          check=True).stdout
    total = re.search(r"Total Cycles:\s+(\d+)", text)
    assert total is not None, text
    return Analysis(int(total[1]) / ITERATIONS, len(lines))


# ---------------------------------------------------------------------- kernels


def product(tokens: int = 256) -> Graph:
    """A product of matrices, as in a transformer: 640 to 640 channels. The weight is [o, i], as
    checkpoints have it: only then are quantised ones held as they are."""
    g = Graph("product")
    x, w = g.input("x", (tokens, 640)), g.parameter("w", (640, 640))
    g.output("y", g.apply("mat_mul", x, w.transpose(1, 0)))
    return g


def convolution(channels: int, size: int, kernel: int = 3) -> Graph:
    """A convolution of an image, as in a UNet."""
    g, pad = Graph("convolution"), kernel // 2
    x = g.input("x", (1, channels, size, size))
    w = g.parameter("w", (channels, channels, kernel, kernel))
    g.output("y", g.apply("conv", x, w, pads=(pad,) * 4))
    return g


def attention() -> Graph:
    """Self-attention of 1024 tokens with 8 heads of 40 channels."""
    g = Graph("attention")
    q, k, v = (g.input(name, (1, 1024, 320)) for name in "qkv")
    g.output("y", g.apply("attention", q, k, v, num_heads=8))
    return g


def depthwise() -> Graph:
    """A convolution of each channel by itself, as in MobileNet."""
    g = Graph("depthwise")
    x, w = g.input("x", (1, 192, 28, 28)), g.parameter("w", (192, 1, 3, 3))
    g.output("y", g.apply("conv", x, w, pads=(1, 1, 1, 1), group=192))
    return g


def product_of_bytes(tokens: int = 256) -> Graph:
    """A product of bytes by integers of 8 bits, with sums of 32, read where they lie."""
    g = Graph("product of bytes")
    x, w = g.input("x", (tokens, 640), "u8"), g.parameter("w", (640, 640), "i8")
    g.output("y", g.apply("mat_mul_integer", x, w.transpose(1, 0), g.constant(128, "u8"),
                          g.constant(0, "i8")))
    return g


def convolution_of_bytes(channels: int, size: int, kernel: int) -> Graph:
    """A convolution of bytes, as in a quantised model."""
    g = Graph("convolution of bytes")
    x = g.input("x", (1, channels, size, size), "u8")
    w = g.parameter("w", (channels, channels, kernel, kernel), "i8")
    g.output("y", g.apply("conv_integer", x, w, g.constant(3, "u8"), g.constant(0, "i8"),
                          pads=(kernel // 2,) * 4))
    return g


def product_of_codes(tokens: int = 256) -> Graph:
    """A product of bytes by the codes of weights that a file has in blocks."""
    g = Graph("product of codes")
    x, w = g.input("x", (tokens, 640), "u8"), g.parameter("w", (640, 640))
    g.output("y", g.apply("mat_mul_rounded", x, w.transpose(1, 0), g.constant(128, "u8")))
    return g


KERNELS = {
    "product": (product, {}, "f32"),
    "conv 3x3 of 16 channels": (lambda: convolution(16, 64), {}, "f32"),
    "conv 3x3 Winograd": (lambda: convolution(128, 32), {"winograd": 4}, "f32"),
    "conv 1x1": (lambda: convolution(128, 32, 1), {}, "f32"),
    "attention": (attention, {}, "f32"),
    "depthwise 3x3": (depthwise, {}, "f32"),
    "product f16": (product, {"weights": "f16"}, "f32"),
    "product bf16": (product, {}, "bf16"),
    "product q8": (product, {"weights": "q8"}, "f32"),
    "product q8 of 4 tokens": (lambda: product(4), {"weights": "q8"}, "f32"),
}
"""Graphs of a kernel, what is asked of their compilation, and its precision."""


BYTES = {
    "product of bytes": (product_of_bytes, {}, "f32"),
    "conv 3x3 of bytes": (lambda: convolution_of_bytes(128, 32, 3), {}, "f32"),
    "conv 1x1 of bytes": (lambda: convolution_of_bytes(128, 32, 1), {}, "f32"),
    "product of bytes of 4 tokens": (lambda: product_of_bytes(4), {}, "f32"),
    "product of bytes by codes of q8": (product_of_codes, {"weights": "q8"}, "f32"),
    "product of bytes by codes of q4_min": (product_of_codes, {"weights": "q4_min"}, "f32"),
}
"""The same of levels that multiply bytes. A multiply-add is then of all that an instruction takes:
16 products of `sdot`, 32 of `usmmla`."""


PRODUCTS = ("product", "conv 3x3 of 16 channels", "conv 3x3 Winograd", "conv 1x1", "attention",
            "product of bytes", "conv 3x3 of bytes", "conv 1x1 of bytes")
"""Kernels whose inner loop is a micro-kernel, of which the share of the peak is asked."""


WHOLE = ("depthwise 3x3",)
"""Kernels whose products are of whole vectors, not by lane."""


BEGUN = ("depthwise 3x3",)
"""Kernels whose sums begin with a product where factors are taken by lane, not with zero."""


def made(name: str, level_name: str) -> Module:
    """The module of a kernel for a feature level, for one thread."""
    graph, asked, precision = {**KERNELS, **BYTES}[name]
    weights = (("w", asked["weights"]),) if "weights" in asked else ()
    winograd = (("w", asked["winograd"]),) if "winograd" in asked else ()
    chosen = level(level_name)
    return compiled(graph(), TARGETS[level_name], limits(chosen),
                    Options(precision, (), 1, weights, winograd_sizes=winograd))


def functions(module: Module) -> list[bytes]:
    """The code of each function of a module that is called in every run, from its entry on."""
    called = {launch.function for launch in module.launches[module.steady:]
              if isinstance(launch, Launch)}
    return [module.code_of(number) for number in sorted(called)]


def heaviest(tool: str, module: Module, core: CpuCore) -> list[Instruction]:
    """The innermost loop with most multiply-adds among all functions of a module."""
    bodies = [most_multiplying(disassembled(tool, code, core))
              for code in functions(module)]
    return max(bodies, key=multiply_adds, default=[])


def measured_share(module: Module, level_name: str) -> float:
    """FLOP/s of a kernel on this CPU, over those of multiply-adds on registers only."""
    program, random = NativeProgram(module, 1), np.random.default_rng(0)
    program.bind(lambda name: (random.standard_normal(module.parameters[name]) / 10).astype(
        np.float32))
    inputs = {name: random.standard_normal(shape).astype(np.float32)
              for name, shape in program.inputs.items()}
    pairs = module.precision == "bf16" and level(level_name).pairs
    seconds, peak = [], 0.0
    for _ in range(TURNS):
        program.run(inputs)
        seconds.append(sum(program.kernel_seconds()))
        peak = max(peak, _peak(level_name, pairs))
    return sum(r.flops for r in module.regions) / min(seconds) / peak


def _peak(level_name: str, pairs: bool) -> float:
    """FLOP/s of multiply-adds on registers only, in some milliseconds: a longer run would count
    what other programs take."""
    chosen = level(level_name)
    work = probes.sums(chosen) * probes.STEPS * chosen.lanes * (4 if pairs else 2) * PEAK_TILES
    return work / probes.best(probes.multiplying(chosen, pairs), PEAK_TILES, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cores", help="names of `CORES`, with commas; default: all of AArch64")
    parser.add_argument("--level", default="neon", choices=list(LEVELS))
    parser.add_argument("--kernels", help="names of `KERNELS` or `BYTES`, with commas")
    parser.add_argument("--mca", help="the analyser; default: the newest that is installed")
    parser.add_argument("--measure", action="store_true", help="also run the kernels on this CPU")
    parser.add_argument("--show", action="store_true", help="also print the loops")
    arguments = parser.parse_args()
    tool = arguments.mca or next(filter(shutil.which, TOOLS), None)
    if tool is None:
        parser.error("llvm-mca is not installed: Debian's package is llvm-22")
    names = (arguments.cores.split(",") if arguments.cores else
             [name for name, core in CORES.items() if core.triple == "aarch64"])
    kernels = arguments.kernels.split(",") if arguments.kernels else [
        *KERNELS, *(BYTES if level(arguments.level).quads else ())]
    print(f"| kernel, {arguments.level} | instructions (multiply-adds) | {' | '.join(names)} |"
          + " measured |" * arguments.measure)
    print("| --- " * (2 + len(names) + arguments.measure) + "|")
    low = 0
    for kernel in kernels:
        module = made(kernel, arguments.level)
        body = executed(heaviest(tool, module, CORES[names[0]]))
        count = products(kernel, body)
        if arguments.show:
            print(*(i.text for i in body), sep="\n", file=sys.stderr)
        cells = []
        for name in names:
            core, found = CORES[name], analysed(tool, body, CORES[name])
            share = count / core.peak(kernel) / found.clocks
            missed = core.asked and share < ASKED and kernel in (*PRODUCTS, *WHOLE)
            low += missed
            cells.append(f"{share:.0%}{' (low)' * missed}")
        if arguments.measure:
            cells.append(f"{measured_share(module, arguments.level):.0%}")
        print(f"| {kernel} | {len(body)} ({count}) | {' | '.join(cells)} |")
    for name in names:
        if CORES[name].note:
            print(f"\n{name}: {CORES[name].note}.")
    return int(low > 0)


if __name__ == "__main__":
    sys.exit(main())
