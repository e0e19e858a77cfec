"""One element of a pointwise operation, in the arith and math dialects.

A row of `FLOAT` or `INTEGER` is a text of one or several lines: `{r}` is the name of the result,
`{0}`, `{1}` … are those of the operands, `{t}` is their type; `{r}_a` and the like are names in
between.
"""

from __future__ import annotations

from smalti.graph.operation import FLOATS

TYPES = {"f64": "f64", "f32": "f32", "f16": "f16", "bf16": "bf16", "bool": "i1",
         **{f"{sign}{bits}": f"i{bits}" for sign in "iu" for bits in (4, 8, 16, 32, 64)}}
"""The element type of each dtype; signs of integers are with the operations, not the types."""

ONE = "{r}_1 = arith.constant 1.0 : {t}\n"
FLOAT = {
    "neg": "{r} = arith.negf {0} : {t}",
    "abs": "{r} = math.absf {0} : {t}",
    "exp": "{r} = math.exp {0} : {t}",
    "log": "{r} = math.log {0} : {t}",
    "sin": "{r} = math.sin {0} : {t}",
    "cos": "{r} = math.cos {0} : {t}",
    "tanh": "{r} = math.tanh {0} : {t}",
    "erf": "{r} = math.erf {0} : {t}",
    "sqrt": "{r} = math.sqrt {0} : {t}",
    "floor": "{r} = math.floor {0} : {t}",
    "ceil": "{r} = math.ceil {0} : {t}",
    "round": "{r} = math.roundeven {0} : {t}", "trunc": "{r} = math.trunc {0} : {t}",
    "reciprocal": ONE + "{r} = arith.divf {r}_1, {0} : {t}",
    "sigmoid": ONE + ("{r}_n = arith.negf {0} : {t}\n"
                      "{r}_e = math.exp {r}_n : {t}\n"
                      "{r}_s = arith.addf {r}_1, {r}_e : {t}\n"
                      "{r} = arith.divf {r}_1, {r}_s : {t}"),
    "relu": "{r}_0 = arith.constant 0.0 : {t}\n{r} = arith.maximumf {0}, {r}_0 : {t}",
    "add": "{r} = arith.addf {0}, {1} : {t}",
    "sub": "{r} = arith.subf {0}, {1} : {t}",
    "mul": "{r} = arith.mulf {0}, {1} : {t}",
    "div": "{r} = arith.divf {0}, {1} : {t}",
    "pow": "{r} = math.powf {0}, {1} : {t}",
    "max": "{r} = arith.maximumf {0}, {1} : {t}",
    "min": "{r} = arith.minimumf {0}, {1} : {t}",
    "equal": "{r} = arith.cmpf oeq, {0}, {1} : {t}",
    "greater": "{r} = arith.cmpf ogt, {0}, {1} : {t}",
    "greater_or_equal": "{r} = arith.cmpf oge, {0}, {1} : {t}",
    "less": "{r} = arith.cmpf olt, {0}, {1} : {t}",
    "less_or_equal": "{r} = arith.cmpf ole, {0}, {1} : {t}",
}
INTEGER = {
    "neg": "{r}_0 = arith.constant 0 : {t}\n{r} = arith.subi {r}_0, {0} : {t}",
    "add": "{r} = arith.addi {0}, {1} : {t}",
    "sub": "{r} = arith.subi {0}, {1} : {t}",
    "mul": "{r} = arith.muli {0}, {1} : {t}",
    "div": "{r} = arith.div{s}i {0}, {1} : {t}",
    "max": "{r} = arith.max{s}i {0}, {1} : {t}",
    "min": "{r} = arith.min{s}i {0}, {1} : {t}",
    "equal": "{r} = arith.cmpi eq, {0}, {1} : {t}",
    "greater": "{r} = arith.cmpi {s}gt, {0}, {1} : {t}",
    "greater_or_equal": "{r} = arith.cmpi {s}ge, {0}, {1} : {t}",
    "less": "{r} = arith.cmpi {s}lt, {0}, {1} : {t}",
    "less_or_equal": "{r} = arith.cmpi {s}le, {0}, {1} : {t}",
}
BOOLEAN = {
    "and": "{r} = arith.andi {0}, {1} : i1",
    "or": "{r} = arith.ori {0}, {1} : i1",
    "xor": "{r} = arith.xori {0}, {1} : i1",
    "not": "{r}_1 = arith.constant true\n{r} = arith.xori {0}, {r}_1 : i1",
    "equal": "{r}_1 = arith.constant true\n{r}_x = arith.xori {0}, {1} : i1\n"
             "{r} = arith.xori {r}_x, {r}_1 : i1",
}


def row(operation: str, dtype: str) -> str | None:
    """The text of `operation` on operands of `dtype`, without the names; None if there is none."""
    if dtype not in TYPES:
        return None
    if operation == "where":
        return "{r} = arith.select {0}, {1}, {2} : {t}"
    if dtype in FLOATS:
        text = FLOAT.get(operation)
    elif dtype == "bool":
        text = BOOLEAN.get(operation)
    else:
        text = INTEGER.get(operation)
    return text and text.replace("{t}", TYPES[dtype]).replace("{s}", dtype[0].replace("i", "s"))


def cast_row(given: str, to: str) -> str | None:
    """The text of a cast from one dtype to another; None if there is none."""
    if given not in TYPES or to not in TYPES:
        return None
    pair = f"{{0}} : {TYPES[given]} to {TYPES[to]}"
    bits = {dtype: int(TYPES[dtype].strip("bif")) for dtype in (given, to)}
    if to == "bool":
        zero, compare = ("0.0", "cmpf une") if given in FLOATS else ("0", "cmpi ne")
        return (f"{{r}}_0 = arith.constant {zero} : {TYPES[given]}\n"
                f"{{r}} = arith.{compare}, {{0}}, {{r}}_0 : {TYPES[given]}")
    if given in FLOATS and to in FLOATS:
        if bits[given] == bits[to]:  # f16 and bf16: by way of f32
            return (f"{{r}}_w = arith.extf {{0}} : {TYPES[given]} to f32\n"
                    f"{{r}} = arith.truncf {{r}}_w : f32 to {TYPES[to]}")
        return f"{{r}} = arith.{'extf' if bits[to] > bits[given] else 'truncf'} {pair}"
    if given in FLOATS:
        return f"{{r}} = arith.fpto{'u' if to[0] == 'u' else 's'}i {pair}"
    unsigned = given[0] == "u" or given == "bool"
    if to in FLOATS:
        return f"{{r}} = arith.{'u' if unsigned else 's'}itofp {pair}"
    if bits[to] == bits[given]:
        return None  # the same element: a sign changes nothing in it
    if bits[to] < bits[given]:
        return f"{{r}} = arith.trunci {pair}"
    return f"{{r}} = arith.ext{'u' if unsigned else 's'}i {pair}"
