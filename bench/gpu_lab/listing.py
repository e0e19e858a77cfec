"""Reads the assembly that Mesa's compilers print: instructions by class, and the hottest loop.

Classes: matrix, fma, dot (of four bytes), alu, move, shuffle, scalar, wait, barrier, branch, and
for memory "global", "shared" or "scratch", "load" or "store", and the bytes of one lane, as in
"shared load 16".
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """An instruction, or a label. A jump has a `target`, and is `always` taken or not; `cycles` is
    what the compiler waits after it, `products` what a matrix instruction multiplies, of `bytes` or
    of halves."""

    kind: str
    label: str = ""
    target: str = ""
    always: bool = False
    cycles: int = 0
    products: int = 0
    bytes: bool = False


def read(text: str) -> list[Line]:
    """The lines of a listing of ACO, NAK or Intel's compiler."""
    if re.search(r"^BB0:", text, re.M):
        return _amd(text)
    return _nvidia(text) if re.search(r"^block", text, re.M) else _intel(text)


# ---------------------------------------------------------------------- AMD (ACO)

AMD_BYTES = {"u8": 1, "i8": 1, "ubyte": 1, "sbyte": 1, "u16": 2, "i16": 2, "b16": 2, "ushort": 2,
             "sshort": 2, "short": 2, "b32": 4, "dword": 4, "b64": 8, "dwordx2": 8, "b96": 12,
             "dwordx3": 12, "b128": 16, "dwordx4": 16}


def _amd(text: str) -> list[Line]:
    found = []
    for line in text.splitlines():
        if match := re.match(r"(BB\d+):", line):
            found.append(Line("label", label=match[1]))
        elif match := re.match(r"\s+([a-z]\w+)(?:\s+(BB\d+))?", line):
            found.append(Line(_amd_kind(match[1]), target=match[2] or "",
                              always=match[1] in ("s_branch", "s_endpgm"),
                              products=_products(match[1]), bytes="_iu8" in match[1]))
    return found


def _amd_kind(name: str) -> str:
    if name.startswith(("v_wmma", "v_swmmac", "v_mfma")):
        return "matrix"
    if match := re.match(r"(buffer|global|flat|scratch|ds)_(load|store|read|write)(\w*)", name):
        where = {"ds": "shared", "scratch": "scratch"}.get(match[1], "global")
        what = {"read": "load", "write": "store"}.get(match[2], match[2])
        sizes = [size for part, size in AMD_BYTES.items()
                 if part in re.split(r"_", re.sub(r"^2(addr)?(st64)?", "", match[3].lstrip("_")))]
        twice = 2 if match[3].lstrip("_").startswith("2") else 1
        return f"{where} {what} {max(sizes, default=4) * twice}"
    if name.startswith("v_dot4"):
        return "dot"
    if name.startswith(("v_fma", "v_fmac", "v_pk_fma", "v_dot2", "v_dual_fma", "v_mad_f",
                        "v_mac_f", "v_dual_dot2")):
        return "fma"
    if name.startswith(("ds_", "v_permlane", "v_readlane", "v_readfirstlane", "v_writelane")):
        return "shuffle"
    if name.startswith(("v_mov", "v_dual_mov", "v_swap", "v_accvgpr")):
        return "move"
    if name.startswith("v_"):
        return "alu"
    if name.startswith("s_barrier"):
        return "barrier"
    if name.startswith(("s_wait", "s_delay", "s_nop", "s_clause", "s_sleep")):
        return "wait"
    return "branch" if name.startswith(("s_cbranch", "s_branch")) else "scalar"


# ---------------------------------------------------------------------- NVIDIA (NAK)


def _nvidia(text: str) -> list[Line]:
    found = []
    for line in text.splitlines():
        if match := re.match(r"block\S*\s+\d+\s+(\w+)", line):
            found.append(Line("label", label=match[1]))
            continue
        code, _, comment = line.partition("//")
        code = code.strip().removeprefix("}").strip()
        if not code or code.startswith("}"):
            continue
        operation = re.sub(r"^[^=\[]*=\s*", "", code)
        operation = re.sub(r"^@\S+\s+", "", operation)
        delay = re.search(r"delay=(\d+)", comment)
        jump = re.match(r"bra\b(.*)\b(L\d+)$", operation)
        always = bool(jump) and jump[1].split() in ([], ["pT"]) and operation == code
        found.append(Line(_nvidia_kind(operation.split()[0]), target=jump[2] if jump else "",
                          always=always or operation.startswith("exit"),
                          cycles=int(delay[1]) if delay else 1, products=_products(operation),
                          bytes=operation.startswith("imma")))
    return found


def _nvidia_kind(name: str) -> str:
    parts = name.split(".")
    first = parts[0]
    if first in ("hmma", "imma", "dmma", "bmma"):
        return "matrix"
    if first == "ldsm":
        return f"shared load {4 * int(next((p[1:] for p in parts if re.match(r'x[124]$', p)), 1))}"
    if first in ("ld", "st") and len(parts) > 1:
        where = {"shared": "shared", "local": "scratch"}.get(parts[1], "global")
        size = next((int(p[1:]) for p in parts if re.match(r"[bui]\d+$", p)), 32)
        return f"{where} {'load' if first == 'ld' else 'store'} {size // 8}"
    if first in ("ffma", "hfma2", "dfma", "ffma32"):
        return "fma"
    if first == "idp4":
        return "dot"
    if first in ("mov", "swap"):
        return "move"
    if first in ("movm", "shfl", "redux", "vote"):
        return "shuffle"
    if first in ("nop", "depbar", "bsync", "bssy", "bclear", "yield", "warpsync"):
        return "wait"
    if first == "bar":
        return "barrier"
    return "branch" if first in ("bra", "exit", "brk") else "alu"


# ---------------------------------------------------------------------- Intel


def _intel(text: str) -> list[Line]:
    found, lines = [], text.splitlines()
    for number, line in enumerate(lines):
        if match := re.match(r"(LABEL\d+):", line):
            found.append(Line("label", label=match[1]))
        elif match := re.match(r"(?:\([^)]*\)\s*)?([a-z]\w*(?:\s[a-z]\w*)?)[\w.]*\((\d+)\)", line):
            name, lanes = match[1], int(match[2])
            following = lines[number + 1] if number + 1 < len(lines) else ""
            kind = (_intel_message(following, lanes) if name.startswith("send")
                    else _intel_kind(name, re.search(r"<\d+>(\w+)", line)))
            jump = re.search(r"JIP:\s+(LABEL\d+)", line) if name == "while" else None
            deep, whole = re.match(r".*dpas\w*\.(\d+)x(\d+)", line), ",1,0>B " in line
            found.append(Line(kind, target=jump[1] if jump else "", products=int(deep[1])
                              * int(deep[2]) * (4 if whole else 2) * lanes if deep else 0,
                              bytes=bool(deep) and whole))
    return found


def _intel_message(text: str, lanes: int) -> str:
    match = re.search(r"(ugm|slm|tgm|urb)\s+MsgDesc:\s*\(\s*(\w+)", text)
    if not match:
        return "barrier" if "barrier" in text or "fence" in text else "scalar"
    if match[2] in ("load", "store", "load_block", "store_block", "load_cmask", "store_cmask"):
        bits = re.search(r"\bd(\d+)", text)
        vector = re.search(r"\bV(\d+)", text)
        size = int(bits[1]) // 8 * int(vector[1] if vector else 1)
        if "transpose" in text and lanes == 1:
            return "scratch load 4" if ", ss " in text else f"uniform load {size}"
        where = "shared" if match[1] == "slm" else "scratch" if ", ss " in text else "global"
        return f"{where} {match[2].split('_')[0]} {size}"
    return "barrier" if "fence" in match[2] else "scalar"


def _intel_kind(name: str, result: re.Match[str] | None) -> str:
    """The class of an instruction; `result` is the type of what it writes. Addresses are `mad`s of
    integers."""
    if name.startswith("dpas"):
        return "matrix"
    if name == "dp4a":
        return "dot"
    if name.startswith("sync"):
        return "barrier" if name == "sync bar" else "wait"
    if name in ("while", "break", "if", "else", "endif", "do", "cont", "halt"):
        return "branch"
    if name == "mad" and result is not None and result[1] in ("F", "HF"):
        return "fma"
    return "move" if name == "mov" else "alu"


# ---------------------------------------------------------------------- loops


TURNS = 8
"""What every loop is taken to run, as AMD's compiler does: which of them is hot does not depend on
it much."""


def work(lines: list[Line]) -> str:
    """The class of what a program computes with: matrix instructions, without those dot products,
    and fma without either."""
    kinds = {line.kind for line in lines}
    return next((kind for kind in ("matrix", "dot") if kind in kinds), "fma")


def executed(lines: list[Line], turns: int = TURNS) -> int:
    """How much of its work a program does where every loop runs so many times."""
    blocks, before = _blocks(lines)
    return sum(_executed(blocks, before, work(lines), turns))


def hot_loop(lines: list[Line]) -> tuple[list[Line], list[Line]]:
    """The shortest loop that does most of the work where every loop runs `TURNS` times, and the
    longest loop that it is in. Where no loop does any, the work was unrolled: all lines, twice.
    """
    blocks, before = _blocks(lines)
    done = _executed(blocks, before, work(lines), TURNS)

    def span(inside: set[int]) -> list[Line]:
        return [line for each in sorted(inside) for line in blocks[each]]

    loops = [each for each in _loops(set(range(len(blocks))), before)
             if 2 * sum(done[number] for number in each) > sum(done)]
    if not loops:
        return lines, lines
    hot = min(loops, key=lambda each: len(span(each)))
    return span(hot), span(max((each for each in loops if hot <= each), key=len))


def _executed(blocks: list[list[Line]], before: list[list[int]], kind: str,
              turns: int) -> list[int]:
    """How often instructions of a class run in each block."""
    loops = _loops(set(range(len(blocks))), before)
    return [sum(line.kind == kind for line in block)
            * turns ** sum(number in each for each in loops) for number, block in enumerate(blocks)]


def _blocks(lines: list[Line]) -> tuple[list[list[Line]], list[list[int]]]:
    """Lines that run together, and for each such block those from which control comes. What nobody
    reaches, as what fills up lines of code behind a jump, is where control comes from for none."""
    blocks: list[list[Line]] = [[]]
    for line in lines:
        if line.label:
            blocks.append([])
        blocks[-1].append(line)
        if line.target or line.always:
            blocks.append([])
    names = {line.label: number for number, block in enumerate(blocks) for line in block
             if line.label}
    before: list[list[int]] = [[] for _ in blocks]
    for number, block in enumerate(blocks):
        last = block[-1] if block else Line("")
        if last.target in names:
            before[names[last.target]].append(number)
        if not last.always and number + 1 < len(blocks):
            before[number + 1].append(number)
    reached, open_ = {0}, [0]
    while open_:
        each = open_.pop()
        behind = {number for number, sources in enumerate(before) if each in sources} - reached
        reached |= behind
        open_ += behind
    return blocks, [[each for each in sources if each in reached] for sources in before]


def _loops(nodes: set[int], before: list[list[int]]) -> list[set[int]]:
    """Blocks of each loop among `nodes`: those that reach each other, and again without the jumps
    back to where they are entered."""
    reach = {}
    for node in nodes:
        seen: set[int] = set()
        open_ = [each for each in before[node] if each in nodes]
        while open_:
            each = open_.pop()
            if each not in seen:
                seen.add(each)
                open_ += [other for other in before[each] if other in nodes]
        reach[node] = seen
    found, left = [], set(nodes)
    while left:
        node = left.pop()
        if node in reach[node]:
            inside = {other for other in reach[node] if node in reach[other]}
            left -= inside
            found.append(inside)
            entries = {other for other in inside
                       if any(each not in inside for each in before[other])} or {min(inside)}
            cut = [[] if other in entries else sources for other, sources in enumerate(before)]
            found += _loops(inside, cut)
    return found


def mix(lines: list[Line]) -> dict[str, int]:
    """How many instructions there are of each class."""
    counted = Counter(line.kind for line in lines if line.kind != "label")
    return dict(sorted(counted.items()))


def _products(name: str) -> int:
    """What the matrix instruction `name` multiplies: m x n x k."""
    match = (re.search(r"mma\w*_(\d+)x(\d+)x(\d+)", name)
             or re.search(r"mma\.m(\d+)n(\d+)k(\d+)", name))
    return int(match[1]) * int(match[2]) * int(match[3]) if match else 0
