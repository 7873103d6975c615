# SPDX-License-Identifier: Apache-2.0
"""Eager operations: a one-op graph through the same lowering, planning and back end as compiled code, without Dynamo.

The C++ dispatcher calls `compile_op` once per signature (op, sizes, strides, dtypes, layouts, scalar arguments) and
keeps the plan it returns. Numbers that arrive as 0-d CPU tensors are launch scalars, so ``x * 2`` and ``x * 3`` share
a program.
"""

from __future__ import annotations

import itertools
import numbers
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_spyre._inductor.tilegraph.graph import Graph
from torch_spyre.errors import UnsupportedOp


def compile_op(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An `_C.EagerPlan` for this call.

    Runs on a thread of its own: the caller may be inside a fake-tensor, functional or inference mode, or in the middle of
    another compilation, and all of that state is per thread.
    """
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append((True, _compile(op, args, kwargs)))
        except BaseException as error:  # re-raised below, in the caller's thread
            outcome.append((False, error))

    thread = threading.Thread(target=work, name="spyre-eager-compile")
    thread.start()
    thread.join()
    good, value = outcome[0]
    if not good:
        raise value
    return value


def _compile(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    from torch_spyre import _C
    from torch_spyre._inductor.kernel import launch_plan

    args, kwargs = _scalar_tensors(op, args, kwargs)
    flat, spec = tree_flatten((args, kwargs))
    positions = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]
    tensors = [flat[i] for i in positions]
    call = _functional(op, flat, spec, positions)
    traced = _trace(call, tensors)
    graph, inputs, outputs = _lower(traced, op)
    plan = launch_plan(graph.to_json(), [tensors[i] for i in inputs])
    return _C.EagerPlan(plan, inputs, outputs)


def _scalar_tensors(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The call with each number that stands where the schema says Tensor as a 0-d CPU tensor again.

    The dispatcher counts such numbers among the call's tensors and its key holds only their type, so a plan must not
    contain their value. The dtype is the one the call promotes to: then the tensor promotes as the number does.
    """
    names = [a.name for a in op._schema.arguments if str(a.type) in ("Tensor", "Optional[Tensor]")]
    positional = {a.name: i for i, a in enumerate(op._schema.arguments) if not a.kwarg_only}
    values, named = list(args), dict(kwargs)
    operands = [values[positional[n]] if n in positional else named[n] for n in names]
    if not any(isinstance(x, numbers.Number) for x in operands):
        return values, named
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
    _, dtype = elementwise_dtypes(*(x for x in operands if x is not None), type_promotion_kind=kind)
    for name, x in zip(names, operands, strict=True):
        if isinstance(x, numbers.Number):
            scalar = torch.tensor(x).to(dtype)
            if name in positional:
                values[positional[name]] = scalar
            else:
                named[name] = scalar
    return values, named


def _functional(op: Any, flat: list[Any], spec: Any, positions: list[int]) -> Callable[..., Any]:
    """The call as a function of its tensors alone."""
    if op is torch.ops.aten._copy_from.default:
        return lambda source, target: target.copy_(source)

    def call(*tensors: torch.Tensor) -> Any:
        values = list(flat)
        for i, t in zip(positions, tensors, strict=True):
            values[i] = t
        args, kwargs = tree_unflatten(values, spec)
        return op(*args, **kwargs)

    return call


def _trace(call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """FX graph of the call on fake tensors: functional, decomposed as Inductor decomposes."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(t, static_shapes=True) for t in tensors]
    with mode:
        return make_fx(torch.func.functionalize(call), decomposition_table=select_decomp_table())(*fakes)


def _lower(traced: torch.fx.GraphModule, op: Any) -> tuple[Graph, list[int], list[tuple[str, int]]]:
    """(TileGraph, positions of its inputs among the tensors, how each result is returned)."""
    from torch._inductor import ir
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    from torch_spyre._inductor import registration  # noqa: F401  (registers lowerings)
    from torch_spyre._inductor.codegen import graph_buffer
    from torch_spyre._inductor.tilegraph.build import Builder

    placeholders = [n for n in traced.graph.nodes if n.op == "placeholder"]
    fakes = [n.meta["val"] for n in placeholders]
    lowering = GraphLowering(traced, example_inputs=fakes)
    with V.set_graph_handler(lowering), V.set_fake_mode(fakes[0].fake_mode):
        lowering.run(*fakes)
        builder = Builder(f"eager_{op.name().split('::')[-1].replace('.', '_')}", graph_buffer)
        for operation in lowering.operations:
            if not isinstance(operation, ir.ComputedBuffer):
                raise UnsupportedOp(f"{op}: {type(operation).__name__} has no device operation yet")
            builder.add_computed(operation)
        mutated = _mutated_returns(op)
        fresh = [v for v, position in zip(lowering.graph_outputs, mutated, strict=True) if position is None]
        graph = builder.graph([builder.returned(v) for v in fresh])
    order = [p.name for p in placeholders]
    counter = itertools.count()
    outputs = [("input", m) if m is not None else ("output", next(counter)) for m in mutated]
    return graph, [order.index(name) for name in graph.inputs], outputs


def _mutated_returns(op: Any) -> list[int | None]:
    """For each result: the position, among the call's tensors, of the argument it is; None for a new tensor."""
    if op is torch.ops.aten._copy_from.default:
        return [1]
    schema = op._schema
    tensor_arguments = [a for a in schema.arguments if "Tensor" in str(a.type)]
    result: list[int | None] = []
    for returned in schema.returns:
        alias = returned.alias_info
        position = None
        if alias is not None and alias.is_write:
            position = next(
                i
                for i, a in enumerate(tensor_arguments)
                if a.alias_info is not None and a.alias_info.before_set == alias.before_set
            )
        result.append(position)
    return result
