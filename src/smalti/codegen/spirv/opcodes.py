"""The instructions of SPIR-V that we write, with their operands, and the numbers of its enumerants.

Source: SPIR-V Specification 1.6; GLSL.std.450 extended instructions 1.00; SPV_KHR_float_controls,
SPV_KHR_8bit_storage, SPV_KHR_cooperative_matrix, SPV_KHR_bfloat16.
"""

from __future__ import annotations

OPCODES = {
    # name: (number, operands): t its type, r its result, i an id, n a number, s a text, c a
    # capability, d a decoration, m a mode, p a storage class (place); * repeats
    "Extension": (10, "s"),
    "ExtInstImport": (11, "rs"),
    "ExtInst": (12, "trini*"),
    "MemoryModel": (14, "nn"),
    "EntryPoint": (15, "nisi*"),
    "ExecutionMode": (16, "imn*"),
    "Capability": (17, "c"),
    "TypeVoid": (19, "r"),
    "TypeBool": (20, "r"),
    "TypeInt": (21, "rnn"),
    "TypeFloat": (22, "rnn*"),
    "TypeVector": (23, "rin"),
    "TypeArray": (28, "rii"),
    "TypeRuntimeArray": (29, "ri"),
    "TypeStruct": (30, "ri*"),
    "TypePointer": (32, "rpi"),
    "TypeFunction": (33, "ri"),
    "ConstantTrue": (41, "tr"),
    "ConstantFalse": (42, "tr"),
    "Constant": (43, "trn"),
    "ConstantComposite": (44, "tri*"),
    "Function": (54, "trni"),
    "FunctionEnd": (56, ""),
    "Variable": (59, "trp"),
    "Load": (61, "trin*"),
    "Store": (62, "iin*"),
    "AccessChain": (65, "trii*"),
    "Decorate": (71, "idn*"),
    "MemberDecorate": (72, "indn*"),
    "CompositeConstruct": (80, "tri*"),
    "CompositeExtract": (81, "trin*"),
    "ConvertFToU": (109, "tri"),
    "ConvertFToS": (110, "tri"),
    "ConvertSToF": (111, "tri"),
    "ConvertUToF": (112, "tri"),
    "UConvert": (113, "tri"),
    "SConvert": (114, "tri"),
    "FConvert": (115, "tri"),
    "Bitcast": (124, "tri"),
    "SNegate": (126, "tri"),
    "FNegate": (127, "tri"),
    "IAdd": (128, "trii"),
    "FAdd": (129, "trii"),
    "ISub": (130, "trii"),
    "FSub": (131, "trii"),
    "IMul": (132, "trii"),
    "FMul": (133, "trii"),
    "UDiv": (134, "trii"),
    "SDiv": (135, "trii"),
    "FDiv": (136, "trii"),
    "UMod": (137, "trii"),
    "SRem": (138, "trii"),
    "IsNan": (156, "tri"),
    "LogicalEqual": (164, "trii"),
    "LogicalNotEqual": (165, "trii"),
    "LogicalOr": (166, "trii"),
    "LogicalAnd": (167, "trii"),
    "LogicalNot": (168, "tri"),
    "Select": (169, "triii"),
    "IEqual": (170, "trii"),
    "INotEqual": (171, "trii"),
    "UGreaterThan": (172, "trii"),
    "SGreaterThan": (173, "trii"),
    "UGreaterThanEqual": (174, "trii"),
    "SGreaterThanEqual": (175, "trii"),
    "ULessThan": (176, "trii"),
    "SLessThan": (177, "trii"),
    "ULessThanEqual": (178, "trii"),
    "SLessThanEqual": (179, "trii"),
    "FOrdEqual": (180, "trii"),
    "FUnordNotEqual": (183, "trii"),
    "FOrdLessThan": (184, "trii"),
    "FOrdGreaterThan": (186, "trii"),
    "FOrdLessThanEqual": (188, "trii"),
    "FOrdGreaterThanEqual": (190, "trii"),
    "ShiftRightLogical": (194, "trii"),
    "ShiftRightArithmetic": (195, "trii"),
    "ShiftLeftLogical": (196, "trii"),
    "BitwiseOr": (197, "trii"),
    "BitwiseXor": (198, "trii"),
    "BitwiseAnd": (199, "trii"),
    "Not": (200, "tri"),
    "BitFieldSExtract": (202, "triii"),
    "BitFieldUExtract": (203, "triii"),
    "ControlBarrier": (224, "iii"),
    "Phi": (245, "tri*"),
    "LoopMerge": (246, "iin"),
    "SelectionMerge": (247, "in"),
    "Label": (248, "r"),
    "Branch": (249, "i"),
    "BranchConditional": (250, "iii"),
    "Return": (253, ""),
    "GroupNonUniformShuffle": (345, "triii"),
    "GroupNonUniformShuffleXor": (346, "triii"),
    "GroupNonUniformIAdd": (349, "trini"),
    "GroupNonUniformFAdd": (350, "trini"),
    "GroupNonUniformSMin": (353, "trini"),
    "GroupNonUniformUMin": (354, "trini"),
    "GroupNonUniformFMin": (355, "trini"),
    "GroupNonUniformSMax": (356, "trini"),
    "GroupNonUniformUMax": (357, "trini"),
    "GroupNonUniformFMax": (358, "trini"),
    "TypeCooperativeMatrixKHR": (4456, "riiiii"),
    "CooperativeMatrixLoadKHR": (4457, "triiin*"),
    "CooperativeMatrixStoreKHR": (4458, "iiiin*"),
    "CooperativeMatrixMulAddKHR": (4459, "triii"),
}

GLSL = {
    "RoundEven": 2, "Trunc": 3, "FAbs": 4, "SAbs": 5, "Floor": 8, "Ceil": 9, "Exp": 27, "Log": 28,
    "Exp2": 29, "Log2": 30, "Sqrt": 31, "InverseSqrt": 32, "FMin": 37, "UMin": 38, "SMin": 39,
    "FMax": 40, "UMax": 41, "SMax": 42, "FClamp": 43, "Fma": 50, "PackHalf2x16": 58,
    "UnpackHalf2x16": 62,
}
"""Those of the extended set GLSL.std.450."""

CAPABILITIES = {
    "Shader": 1, "Float16": 9, "Int16": 22, "GroupNonUniform": 61, "GroupNonUniformArithmetic": 63,
    "GroupNonUniformShuffle": 65, "StorageBuffer16BitAccess": 4433, "StorageBuffer8BitAccess": 4448,
    "SignedZeroInfNanPreserve": 4466, "BFloat16TypeKHR": 5116,
    "BFloat16CooperativeMatrixKHR": 5118, "VulkanMemoryModel": 5345, "CooperativeMatrixKHR": 6022,
}
EXTENSIONS = {
    # capability: (extension, version of SPIR-V that has it without)
    "StorageBuffer8BitAccess": ("SPV_KHR_8bit_storage", 5),
    "SignedZeroInfNanPreserve": ("SPV_KHR_float_controls", 4),
    "BFloat16TypeKHR": ("SPV_KHR_bfloat16", 99),
    "CooperativeMatrixKHR": ("SPV_KHR_cooperative_matrix", 99),
}
STORAGE = {"Input": 1, "Workgroup": 4, "Function": 7, "PushConstant": 9, "StorageBuffer": 12}
DECORATIONS = {
    "Block": 2, "ArrayStride": 6, "BuiltIn": 11, "Restrict": 19, "Aliased": 20, "Coherent": 23,
    "NonWritable": 24, "NonReadable": 25, "Binding": 33, "DescriptorSet": 34, "Offset": 35,
    "FPRoundingMode": 39, "NoContraction": 42,
}
BUILTINS = {
    "WorkgroupId": 26, "LocalInvocationIndex": 29, "SubgroupId": 40,
    "SubgroupLocalInvocationId": 41,
}
MODES = {"LocalSize": 17, "SignedZeroInfNanPreserve": 4461}
SCOPES = {"Workgroup": 2, "Subgroup": 3}
SEMANTICS = {
    "AcquireRelease": 0x8, "UniformMemory": 0x40, "WorkgroupMemory": 0x100,
    "MakeAvailable": 0x2000, "MakeVisible": 0x4000,
}
NON_PRIVATE_POINTER = 0x20  # a memory operand: others see what is read or written
