"""How SPIR-V spells each instruction of group programs, by the scalar type of its last operand.

What takes more than one instruction of SPIR-V (conversions, vectors) is spelled in `emit.py`.
"""

from __future__ import annotations


def _row(floats: str = "", signed: str = "", unsigned: str = "", truth: str = "") -> dict[str, str]:
    scalars = {"f32": floats, "f16": floats, "bf16": floats, "i32": signed,
               "u32": unsigned or signed, "bool": truth}
    return {scalar: name for scalar, name in scalars.items() if name}


SPELLINGS = {
    "add": _row("FAdd", "IAdd"),
    "sub": _row("FSub", "ISub"),
    "mul": _row("FMul", "IMul"),
    "div": _row("FDiv", "SDiv", "UDiv"),
    "rem": _row("", "SRem", "UMod"),
    "min": _row("FMin", "SMin", "UMin"),
    "max": _row("FMax", "SMax", "UMax"),
    "fma": _row("Fma"),
    "neg": _row("FNegate", "SNegate"),
    "abs": _row("FAbs", "SAbs"),
    "floor": _row("Floor"),
    "ceil": _row("Ceil"),
    "round": _row("RoundEven"),
    "trunc": _row("Trunc"),
    "sqrt": _row("Sqrt"),
    "inverse_sqrt": _row("InverseSqrt"),
    "exp2": _row("Exp2"),
    "log2": _row("Log2"),
    "exp": _row("Exp"),
    "log": _row("Log"),
    "and": _row("", "BitwiseAnd", truth="LogicalAnd"),
    "or": _row("", "BitwiseOr", truth="LogicalOr"),
    "xor": _row("", "BitwiseXor", truth="LogicalNotEqual"),
    "not": _row("", "Not", truth="LogicalNot"),
    "shift_left": _row("", "ShiftLeftLogical"),
    "shift_right": _row("", "ShiftRightArithmetic", "ShiftRightLogical"),
    "equal": _row("FOrdEqual", "IEqual", truth="LogicalEqual"),
    "not_equal": _row("FUnordNotEqual", "INotEqual", truth="LogicalNotEqual"),
    "less": _row("FOrdLessThan", "SLessThan", "ULessThan"),
    "less_equal": _row("FOrdLessThanEqual", "SLessThanEqual", "ULessThanEqual"),
    "greater": _row("FOrdGreaterThan", "SGreaterThan", "UGreaterThan"),
    "greater_equal": _row("FOrdGreaterThanEqual", "SGreaterThanEqual", "UGreaterThanEqual"),
    "select": _row("Select", "Select", truth="Select"),
    "bits": _row("Bitcast", "Bitcast"),
    "matrix_times": _row("MatrixTimesScalar", "MatrixTimesScalar"),
}
"""Instructions that are one of SPIR-V's."""

REDUCTIONS = {
    "subgroup_add": _row("GroupNonUniformFAdd", "GroupNonUniformIAdd"),
    "subgroup_max": _row("GroupNonUniformFMax", "GroupNonUniformSMax", "GroupNonUniformUMax"),
    "subgroup_min": _row("GroupNonUniformFMin", "GroupNonUniformSMin", "GroupNonUniformUMin"),
}
SHUFFLES = {
    "subgroup_shuffle": "GroupNonUniformShuffle",
    "subgroup_shuffle_xor": "GroupNonUniformShuffleXor",
}
CONVERSIONS = {
    ("f32", "f16"): "FConvert", ("f16", "f32"): "FConvert", ("f32", "bf16"): "FConvert",
    ("bf16", "f32"): "FConvert", ("f16", "bf16"): "FConvert", ("bf16", "f16"): "FConvert",
    ("f32", "i32"): "ConvertFToS", ("f32", "u32"): "ConvertFToU",
    ("f16", "i32"): "ConvertFToS", ("f16", "u32"): "ConvertFToU",
    ("i32", "f32"): "ConvertSToF", ("u32", "f32"): "ConvertUToF",
    ("i32", "f16"): "ConvertSToF", ("u32", "f16"): "ConvertUToF",
    ("i32", "u32"): "Bitcast", ("u32", "i32"): "Bitcast",
}
"""From one scalar type to another."""
NEAREST = {
    ("f32", "i32"): (-2.0**31, 2.0**31 - 128), ("f32", "u32"): (0.0, 2.0**32 - 256),
    ("f16", "i32"): (-65504.0, 65504.0), ("f16", "u32"): (0.0, 65504.0),
}
"""What floats are clamped to before they become integers: SPIR-V leaves open what becomes
of others. Of NaN anything becomes."""
