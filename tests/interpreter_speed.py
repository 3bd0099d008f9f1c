"""Two things that Triton's interpreter spends most of its time on, done faster, and one done right.

It reduces one number after the other. A GPU reduces as a tree, and so it is done here: what comes
out does not depend on the order, but for its rounding.

And it replaces the whole language by its own for every function that a kernel calls, though that
was done when the kernel began.

Of a NaN and a number a GPU says that the number is the greater one, and the smaller one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import ReduceOps

import interpreter_types


def reduce_as_tree(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """What ``ReduceOps.generic_reduce`` gives, by halves."""
    inputs, axis = self.unravel(inputs, self.axis)
    dtypes = [x.dtype for x in inputs]
    values = [np.moveaxis(x.handle.data, axis, 0) for x in inputs]
    while len(values[0]) > 1:
        half = len(values[0]) // 2
        first, second = (
            [
                self.to_tensor(np.ascontiguousarray(v[part]), d)
                for v, d in zip(values, dtypes, strict=True)
            ]
            for part in (slice(0, half), slice(half, 2 * half))
        )
        made = self.combine_fn.fn(*first, *second)
        made = made if isinstance(made, tuple) else (made,)
        values = [
            np.concatenate([m.handle.data.reshape(half, *v.shape[1:]), v[2 * half :]])
            for m, v in zip(made, values, strict=True)
        ]
    results = []
    for value, dtype in zip(values, dtypes, strict=True):
        whole = np.expand_dims(value[0], axis) if self.keep_dims else value[0]
        results.append(self.to_tensor(whole if whole.ndim else whole.item(), dtype))
    return results


def patching_once(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``_patch_lang``, which does nothing for languages that the running kernel has patched."""
    patched: set[tuple[bool, ...]] = set()
    seen: dict[int, tuple[bool, ...]] = {}  # what functions of a module see, by their globals

    class Scope(interpreter._LangPatchScope):  # type: ignore[misc]
        """That of a kernel: its end is the end of all patches."""

        def __init__(self, made: Any) -> None:
            self.made = made

        def restore(self) -> None:
            patched.clear()
            self.made.restore()

    def patch_once(fn: Any) -> Any:
        languages = seen.get(id(fn.__globals__))
        if languages is None:
            values = [id(value) for value in fn.__globals__.values()]
            languages = seen[id(fn.__globals__)] = (id(tl) in values, id(tl.core) in values)
        if languages in patched:
            return None
        is_kernel = not patched
        made = patch(fn)
        patched.add(languages)
        return Scope(made) if is_kernel else made

    return patch_once


def install() -> None:
    assert callable(ReduceOps.generic_reduce), "Triton's interpreter reduces in some other way now"
    ReduceOps.generic_reduce = reduce_as_tree
    builder = interpreter.InterpreterBuilder
    builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
    builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)
    if hasattr(interpreter, "_LangPatchScope"):  # not so in older ones, which take longer
        interpreter_types.install()
        interpreter._patch_lang = patching_once(interpreter._patch_lang)
