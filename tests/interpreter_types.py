"""What Triton's interpreter makes of types, remembered: a kernel has few of them, in many numbers.

For every number that a kernel computes the interpreter makes a type, takes its shape apart and
together again, and compares it with others. That takes ten times as long as the arithmetic. Here
each of these is worked out once for each type. Shapes and dtypes are checked as before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

#: Names of the types whose numbers may meet a Python number without further ado.
PLAIN_NUMBERS = frozenset({"int32", "int64", "fp32", "fp64"})


def remember_block_types() -> None:
    """A block type is made once for each element type and shape, with what its tensors share."""
    make = core.block_type.__init__
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = [size.value if type(size) is core.constexpr else size for size in shape]
        key = (id(element_ty), *sizes)  # the type is kept below, so that no other has its id
        found = known.get(key)
        if found is None:
            make(self, element_ty, shape)
            parts = core.tuple([core.constexpr(size) for size in self.shape])
            self.of_tensors = (parts, core.constexpr(self.numel), self.scalar)
            found = known[key] = dict(self.__dict__)
        self.__dict__.update(found)

    core.block_type.__init__ = init


def remember_tensor_shapes() -> None:
    """A tensor takes its shape from its type; a number has none."""
    nothing, one = core.tuple([]), core.constexpr(1)

    def init(self: Any, handle: Any, type: Any) -> None:
        self.handle = handle
        self.type = type
        if type.is_block():
            self.shape, self.numel, self.dtype = type.of_tensors
        else:
            self.shape, self.numel, self.dtype = nothing, one, type.scalar

    core.tensor.__init__ = init


def remember_dtypes() -> None:
    """Numpy's dtype for a type and the bytes of a number, by the type's name."""
    numpy_dtype, unwrap, equal = (
        interpreter._get_np_dtype,
        core._unwrap_if_constexpr,
        core.dtype.__eq__,
    )
    dtypes: dict[str, Any] = {}
    widths: dict[str, int] = {}
    plain = frozenset({int, float, bool, str, core.dtype, core.tensor, core.block_type})

    def find_numpy_dtype(dtype: Any) -> Any:
        found = dtypes.get(dtype.name)
        if found is None:
            found = dtypes[dtype.name] = numpy_dtype(dtype)
        return found

    def fits(array: Any, dtype: Any) -> bool:
        width = widths.get(dtype.name)
        if width is None:
            is_pointer = isinstance(dtype, core.pointer_type)
            width = widths[dtype.name] = 64 if is_pointer else max(dtype.primitive_bitwidth // 8, 1)
        return bool(array.itemsize <= width)

    def unwrap_if_constexpr(value: Any) -> Any:
        kind = type(value)
        if kind is core.constexpr:
            return value.value
        return value if kind in plain else unwrap(value)

    def make_handle(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if not fits(data, dtype):
            self.__post_init__()  # which says so

    interpreter.TensorHandle.__init__ = make_handle
    interpreter._get_np_dtype = find_numpy_dtype
    interpreter._validate_np_data_size = fits
    core._unwrap_if_constexpr = unwrap_if_constexpr
    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)


def remember_promotions() -> None:
    """Which type two others make; two of one type make it, and nothing is converted."""
    promote = TritonSemantic.computation_type_impl
    check = TritonSemantic.binary_op_type_checking_impl
    known: dict[tuple[Any, ...], Any] = {}

    def find_type(
        self: Any, a: Any, a_is_number: bool, b: Any, b_is_number: bool, div: bool
    ) -> Any:
        key = (a.name, a_is_number, b.name, b_is_number, div)
        found = known.get(key)
        if found is None:
            found = known[key] = promote(self, a, a_is_number, b, b_is_number, div)
        return found

    def with_number(self: Any, tensor: Any, number: Any, div: bool) -> Any:
        """Both as tensors of one type; None where there is more to say about them."""
        if type(tensor) is not core.tensor or type(number) not in (int, float):
            return None
        if tensor.dtype.name not in PLAIN_NUMBERS:
            return None
        number_type = self.to_tensor_type(number)
        found = find_type(self, tensor.dtype, False, number_type, True, div)
        if found.name not in PLAIN_NUMBERS:
            return None
        if found.is_int() and not found.get_int_min_value() <= number <= found.get_int_max_value():
            return None
        return self.cast(tensor, found), self.scalar_constant(number, dtype=found)

    def find_common(
        self: Any,
        left: Any,
        right: Any,
        allow_left_pointer: bool = False,
        allow_right_pointer: bool = False,
        arithmetic_check: bool = True,
        div: bool = False,
    ) -> Any:
        made: Any = None
        if type(left) is core.tensor and type(right) is core.tensor:
            is_one_type = left.dtype is right.dtype and left.dtype.name in PLAIN_NUMBERS
            made = (left, right) if is_one_type else None
        elif arithmetic_check:
            made = with_number(self, left, right, div)
            if made is None:
                made = with_number(self, right, left, div)
                made = made and made[::-1]
        if made is not None:
            return self.broadcast_impl_value(*made)
        allowed = (allow_left_pointer, allow_right_pointer)
        return check(self, left, right, *allowed, arithmetic_check, div)

    TritonSemantic.computation_type_impl = find_type
    TritonSemantic.binary_op_type_checking_impl = find_common


def remember_broadcasts() -> None:
    """The shape that two blocks have in common; blocks of one shape are left as they are."""
    broadcast = TritonSemantic.broadcast_impl_value
    known: dict[tuple[Any, ...], list[int]] = {}

    def spread(self: Any, value: Any, shape: list[int]) -> Any:
        made = core.block_type(value.dtype, shape)
        return self.tensor(self.builder.create_broadcast(value.handle, shape), made)

    def fill(self: Any, value: Any, shape: list[int]) -> Any:
        filled = np.full(shape, value.handle.data, interpreter._get_np_dtype(value.dtype))
        made = core.block_type(value.dtype, shape)
        return self.tensor(interpreter.TensorHandle(filled, value.dtype), made)

    def broadcast_values(self: Any, left: Any, right: Any) -> Any:
        if not left.type.is_block():
            is_alone = not right.type.is_block()
            return (left if is_alone else fill(self, left, right.type.shape.values)), right
        if not right.type.is_block():
            return left, fill(self, right, left.type.shape.values)
        sizes, others = left.type.shape.values, right.type.shape.values
        if sizes == others:
            return left, right
        key = (*sizes, None, *others)
        common = known.get(key)
        if common is None:
            made = broadcast(self, left, right)
            known[key] = list(made[0].type.shape)
            return made
        if len(sizes) != len(others):
            return broadcast(self, left, right)
        return (
            left if sizes == common else spread(self, left, common),
            right if others == common else spread(self, right, common),
        )

    TritonSemantic.broadcast_impl_value = broadcast_values


def convert_what_differs() -> None:
    """A number of the wanted type is left as it is; a dimension of one is only another view."""
    cast = TritonSemantic.cast

    def cast_if_needed(self: Any, value: Any, wanted: Any, *rounding: Any, **named: Any) -> Any:
        if value.dtype is wanted:
            return value
        return cast(self, value, wanted, *rounding, **named)

    def add_dimension(self: Any, handle: Any, axis: int) -> Any:
        place = (*(slice(None),) * axis, None) if axis >= 0 else (..., None)
        assert axis >= -1
        return interpreter.TensorHandle(handle.data[place], handle.dtype.scalar)

    TritonSemantic.cast = cast_if_needed
    interpreter.InterpreterBuilder.create_expand_dims = add_dimension


def leave_overflows_unchecked() -> None:
    """Whole numbers may wrap around, as on a GPU: what was computed to tell is told to nobody."""
    assert not interpreter.interpreter_builder.options.debug, "an overflow would be an error"
    TritonSemantic.binary_op_sanitize_overflow_impl = lambda self, left, right, operation: None


def call_builtins_directly() -> None:
    """A function of the language is called once removed, not three times."""

    def patch_attribute(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        function, semantic = (
            getattr(member, "__wrapped__", member),
            interpreter.interpreter_semantic,
        )

        def call(*values: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return function(*values, **named)

        scope.set_attr(owner, name, call)

    interpreter._patch_attr = patch_attribute


def install() -> None:
    if not hasattr(TritonSemantic, "to_tensor_type"):  # Triton before 3.7, which takes longer
        return
    assert tl.tensor is core.tensor
    remember_block_types()
    remember_tensor_shapes()
    remember_dtypes()
    remember_promotions()
    remember_broadcasts()
    convert_what_differs()
    leave_overflows_unchecked()
    call_builtins_directly()
