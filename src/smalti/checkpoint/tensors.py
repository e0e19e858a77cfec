"""The tensors of a model by the names of its parameters, wherever in files they lie."""

from __future__ import annotations

from functools import cached_property

import ml_dtypes
import numpy as np
import numpy.typing as npt

from smalti.checkpoint.blocks import FORMATS, held
from smalti.checkpoint.four_bit import FORMATS as FOUR_BIT_FORMATS
from smalti.checkpoint.scaled import SCALED_TYPES
from smalti.dataclass import dataclass
from smalti.errors import CheckpointError
from smalti.families.keys import Expression, assembled, shape_of
from smalti.families.keys.renaming import internal_shape
from smalti.graph.quantised import Quantised
from smalti.runtime.cpu.conversion import converted
from smalti.runtime.tensor_file import Tensors

Shape = tuple[int, ...]
AS_STORED = ("F32", "F16", "BF16")
"""Dtype tags whose values are read without a copy."""
HALVES = {"F16": "f16", "BF16": "bf16", **dict.fromkeys(
    ("F8_E4M3", "F8_E5M2", *SCALED_TYPES.values(), *FOUR_BIT_FORMATS), "f16")}
"""What programs hold values of a tag as. Every 8-bit float is an f16; with a scale, and of 4 bits,
they are rounded, a hundredth as much as they were."""


def held_as(tag: str) -> str | None:
    """What programs hold weights of a dtype tag as: halves, or quantised; None for f32.

    >>> held_as("F16"), held_as("F8_E4M3"), held_as("Q4_K"), held_as("F64")
    ('f16', 'f16', 'q4_min', None)
    """
    return FORMATS[tag].held if tag in FORMATS else HALVES.get(tag)


@dataclass(frozen=True)
class StoredTensor:
    """One parameter: the file that it lies in, where in it, and its shape inside."""

    file: Tensors
    expression: Expression
    shape: Shape

    @classmethod
    def of(cls, file: Tensors, name: str, expression: Expression) -> StoredTensor:
        """The parameter `name`, which `expression` finds in `file`.

        Raises CheckpointError where the tensors that it consists of do not fit together.
        """
        try:
            shape = shape_of(expression, file.shape)
        except CheckpointError as error:
            raise CheckpointError(f"{file.path}: {error}; the file is damaged") from error
        return cls(file, expression, internal_shape(name, shape))

    @cached_property
    def stored_names(self) -> tuple[str, ...]:
        """What the file calls the tensors that this one consists of."""
        return tuple(dict.fromkeys(part.name for part in self.expression))

    @property
    def dtype(self) -> str:
        """Dtype tag as stored, such as "F16"; "F32" where that of the tensors differs, or where
        what is stored is not the values themselves."""
        return "F32" if self._computed else self.file.dtype(self.expression[0].name)

    @cached_property
    def _computed(self) -> bool:
        """Whether no bytes of the file are the values."""
        return (len({self.file.dtype(name) for name in self.stored_names}) > 1
                or any(part.added for part in self.expression))

    def raw(self) -> np.ndarray:
        """What is stored, where possible as a view; BF16 as uint16, float8 as uint8.

        Of a block format it is uint8, with the bytes of a row as last axis; of 4 bits, bytes. What
        is stored in several formats, or otherwise, is read.
        """
        if self._computed:
            return self.read()
        stored = assembled(self.expression, self.file.raw)
        packed = self.dtype in FORMATS or self.dtype in FOUR_BIT_FORMATS
        return stored if packed else stored.reshape(self.shape)

    def read(self) -> npt.NDArray[np.float32]:
        """A float32 copy."""
        return assembled(self.expression, self.file.read).reshape(self.shape)

    def floats(self) -> np.ndarray:
        """The values as float32, float16 or bfloat16, as stored, else as float32."""
        if self._computed or self.dtype not in AS_STORED:
            return self.read()
        return self.raw().view(ml_dtypes.bfloat16) if self.dtype == "BF16" else self.raw()

    def given(self) -> np.ndarray | Quantised:
        """The values as programs take them: of a block format as it is, of others that are smaller
        than halves as f16, else as `floats`."""
        if HALVES.get(self.dtype) == "f16" != self.dtype.lower():
            return converted(self.read(), "f16")
        if self.dtype not in FORMATS or any(
                part.transposed or part.tap is not None or part.flat for part in self.expression):
            return self.floats()
        return held(self.dtype, np.ascontiguousarray(self.raw()), self.shape)

    def same_as(self, other: StoredTensor) -> bool:
        """Whether both hold the same numbers in the same format."""
        return self.dtype == other.dtype and np.array_equal(self.raw(), other.raw())

    def drop(self) -> None:
        """Let the system take back the memory that holds it, until it is read again."""
        for name in self.stored_names:
            self.file.drop(name)
