# SPDX-License-Identifier: Apache-2.0
"""Eager operations: a one-op graph through the same lowering, planning and back end as compiled code, without Dynamo.

The C++ dispatcher calls `compile_op` once per signature (op, sizes, strides, dtypes, layouts, scalar arguments) and
keeps the plan it returns. Where a size has varied, the plan is one for a bucket of sizes (`ops/reuse`), and the
dispatcher finds it for the other sizes by itself. Numbers that arrive as 0-d CPU tensors are launch scalars, so
``x * 2`` and ``x * 3`` share a program.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import numbers
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_spyre import knobs
from torch_spyre._inductor.planned_sizes import exact_plans
from torch_spyre._inductor.tilegraph.graph import Graph
from torch_spyre.decompositions import optimisers
from torch_spyre.decompositions.host_ops import reason
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ops.reuse import families, lowered_calls, varying_sizes

_THREAD = "spyre-eager-compile"
_compiling: list[Any] = []  # ops, the innermost last


def compile_op(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An `_C.EagerPlan` for this call, or ``("result", value)`` where no plan could be kept.

    Runs on a thread of its own: the caller may be inside a fake-tensor, functional or inference mode, or in the middle
    of another compilation, and all of that state is per thread.
    """
    _check_dtypes(op, args)
    lowered_calls.follow_knobs()
    entry = lowered_calls.key(op, args, kwargs)
    sized = None if entry is None else SizedCall.of(op, args, kwargs)
    known = None if entry is None else lowered_calls.load(entry)
    if known is not None:
        if sized is not None:
            sized.family.note(sized.call)
        return _recalled(op, args, kwargs, known)
    found = None if sized is None else sized.family.recall(sized.tensors, sized.call)
    if found is not None:
        return found
    if in_trace_of(op):
        raise _unsupported(op, "PyTorch has no abstract form of it")
    outcome: list[Any] = []
    chosen = knobs.planning()  # another thread has others

    def work() -> None:
        try:
            with knobs.patch(**chosen):
                outcome.append((True, _planned(op, args, kwargs, entry, sized)))
        except BaseException as error:  # re-raised below, in the caller's thread
            outcome.append((False, error))

    with _one_at_a_time():
        _compiling.append(op)
        try:
            _wait_for(threading.Thread(target=work, name=_THREAD))
        finally:
            _compiling.pop()
    good, value = outcome[0]
    if good:
        return value
    if not isinstance(value, _Resize):
        raise value
    # An out= tensor of another size: a plan would resize it only once, so the call is made again with the right size.
    if entry is not None:
        place = next((i for i, x in enumerate(_tensors(op, args, kwargs)) if x is value.target), None)
        if place is not None:
            lowered_calls.store(entry, {"resize": place, "size": value.size, "stride": value.stride})
    _resize(value.target, value.size, value.stride)
    return "result", op(*args, **kwargs)


def _wait_for(thread: threading.Thread) -> None:
    """Runs a thread. An interrupt (Ctrl-C) is raised when the thread is through: it holds state of the compiler."""
    interrupt, step = None, thread.start
    while step == thread.start or thread.is_alive():
        try:
            step, now = thread.join, step
            now()
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def in_trace_of(op: Any) -> bool:
    """Is this a call by the trace of the op itself, on real tensors, because it does not know what the op returns?"""
    return threading.current_thread().name == _THREAD and op in _compiling


def _tensors(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of a call in the order in which a plan names them."""
    flat, _ = _flattened(op, args, kwargs)
    return [x for x in flat if isinstance(x, torch.Tensor)]


def _flattened(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """The arguments of a call in a row and how they nest; numbers that change from launch to launch are tensors."""
    flat, spec = tree_flatten(_scalar_tensors(op, args, kwargs))
    # A generator draws keys at each launch; a plan has none.
    return optimisers.with_tensors(op, [None if isinstance(x, torch.Generator) else x for x in flat]), spec


@dataclass
class SizedCall:
    """A call with its sizes, and the family of calls that differ from it in sizes only."""

    family: families.Family
    tensors: list[torch.Tensor]
    call: varying_sizes.Call

    @staticmethod
    def of(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> SizedCall | None:
        family = families.family_of(op, args, kwargs)
        if family is None:
            return None
        tensors = _tensors(op, args, kwargs)
        return SizedCall(family, tensors, varying_sizes.seen(tensors))


def _planned(op: Any, args: Sequence[Any], kwargs: dict[str, Any], entry: str | None, sized: SizedCall | None) -> Any:
    """A plan for the bucket of the call, if it is not the first of its kind, else for its own sizes."""
    if sized is None:
        return _compile(op, args, kwargs, entry)
    plan, reason = sized.family.make(sized.tensors, sized.call, functools.partial(lower_for_sizes, op, args, kwargs))
    sized.family.note(sized.call)
    if plan is not None:
        return plan
    made = _compile(op, args, kwargs, entry)
    if reason:
        exact_plans[f"eager {op.name()}", op.name(), reason] += 1
    return made


def _recalled(op: Any, args: Sequence[Any], kwargs: dict[str, Any], known: lowered_calls.Record) -> Any:
    """The plan of a call that was lowered before, here or in another process."""
    from torch_spyre import _C  # late: start-up
    from torch_spyre._inductor.kernel import launch_plan  # late: start-up

    tensors = _tensors(op, args, kwargs)
    if "resize" in known:
        _resize(tensors[known["resize"]], known["size"], known["stride"])
        return "result", op(*args, **kwargs)
    inputs = known["inputs"]
    plan = launch_plan(known["graph"], [tensors[i] if i >= 0 else 0 for i in inputs])
    return _C.EagerPlan(plan, inputs, [(kind, i) for kind, i in known["outputs"]])


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """FX tracing and Inductor's lowering have global state, so compilations of all threads take turns, under Dynamo's
    own lock. The caller takes it: a thread that compiles a graph holds it already, and a thread made here works for
    one that does.

    A trace sets a flag of the whole process, by which Dynamo refuses compiled functions of any thread unless the
    process says that it compiles.
    """
    if threading.current_thread().name == _THREAD:
        yield
        return
    from torch._dynamo import convert_frame

    with convert_frame.compile_lock, torch.compiler._compile_session_context():
        yield


class _Resize(Exception):
    """The call resizes one of its tensors before it writes it."""

    def __init__(self, target: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> None:
        super().__init__(size)
        self.target, self.size, self.stride = target, [int(n) for n in size], [int(n) for n in stride]


def _resize(x: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> None:
    """An `out=` tensor gets the strides that the result would have by itself, as on the CPU, which warns too."""
    if x.numel() and list(x.shape) != list(size):
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(x.shape)}, which does not match "
            f"the required output shape {list(size)}. This behavior is deprecated, and in a future PyTorch release "
            "outputs will not be resized unless they have zero elements. You can explicitly reuse an out tensor t by "
            "resizing it, inplace, to zero elements with t.resize_(0).",
            stacklevel=4,
        )
    x.resize_(size)
    if tuple(stride) != x.stride():
        x.as_strided_(size, stride)


def _check_dtypes(op: Any, args: Sequence[Any]) -> None:
    for x in args:
        if isinstance(x, complex) or (isinstance(x, torch.Tensor) and x.is_complex()):
            raise UnsupportedOp(f"{op}: the card has no complex numbers (got {x!r:.60}); use .cpu() for this operation")


def _unsupported(op: Any, reason: str) -> UnsupportedOp:
    return UnsupportedOp(f"{op} has no device operation yet ({reason}): move its tensors with .cpu() to run it there")


def _compile(op: Any, args: Sequence[Any], kwargs: dict[str, Any], entry: str | None) -> Any:
    from torch_spyre import _C  # late: start-up
    from torch_spyre._inductor.kernel import launch_plan  # late: start-up

    flat, spec = _flattened(op, args, kwargs)
    args, kwargs = tree_unflatten(flat, spec)
    positions = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]
    tensors = [flat[i] for i in positions]
    mutated = _mutated_returns(op, args, kwargs, tensors)
    traced = _trace(op, _functional(op, flat, spec, positions), tensors, [(t.shape, t.stride()) for t in tensors])
    _check_sizes(traced, tensors)
    graph, inputs, outputs = _lower(traced, op, args, mutated)
    text = graph.to_json()
    plan = launch_plan(text, [tensors[i] if i >= 0 else 0 for i in inputs])
    if entry is not None:
        lowered_calls.store(entry, {"graph": text, "inputs": inputs, "outputs": outputs})
    return _C.EagerPlan(plan, inputs, outputs)


def _check_sizes(traced: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> None:
    aten = torch.ops.aten
    resizes = (aten.resize_.default, aten.resize.default, aten.as_strided_.default)  # the last where nothing grows
    placeholders = [n for n in traced.graph.nodes if n.op == "placeholder"]
    for node in traced.graph.nodes:
        if node.target in resizes and node.args[0] in placeholders:
            size = node.args[1]
            copied = [user.args[1] for user in node.users if user.target is aten.copy_.default]
            kept = torch.empty(size, device="meta") if not copied else torch.empty_like(copied[0].meta["val"])
            raise _Resize(tensors[placeholders.index(node.args[0])], size, kept.stride())


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


def _running_extreme(op: Any) -> Callable[..., None]:
    def call(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
        value, index = op(x, dim)
        values.copy_(value)
        indices.copy_(index)

    return call


def _convolution_gradients(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> Any:
    *form, mask = rest
    return torch.ops.aten.convolution_backward(grad, x, weight, [grad.shape[1]], *form, mask)


# Ops that only the dispatcher calls, by what they do in terms that the compiler knows.
_PUBLIC: dict[Any, Callable[..., Any]] = {
    **optimisers.TABLE,
    torch.ops.aten._copy_from.default: lambda source, target, non_blocking=False: target.copy_(source),
    torch.ops.aten._index_put_impl_.default: (
        lambda x, indices, values, accumulate=False, unsafe=False: torch.ops.aten.index_put_.default(
            x, indices, values, accumulate
        )
    ),
    torch.ops.aten.convolution_overrideable.default: torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_backward_overrideable.default: _convolution_gradients,
    torch.ops.aten._cummax_helper.default: _running_extreme(torch.ops.aten.cummax.default),
    torch.ops.aten._cummin_helper.default: _running_extreme(torch.ops.aten.cummin.default),
}


def _functional(op: Any, flat: list[Any], spec: Any, positions: list[int]) -> Callable[..., Any]:
    """The call as a function of its tensors alone."""
    op = _PUBLIC.get(op, op)

    def call(*tensors: torch.Tensor) -> Any:
        values = list(flat)
        for i, t in zip(positions, tensors, strict=True):
            values[i] = t
        args, kwargs = tree_unflatten(values, spec)
        return _present(op(*args, **kwargs), tensors)

    return call


def _present(result: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A plan has no place for a result that is not there: an empty one stands for a gradient nobody asked for."""
    if result is None:
        return ()
    if isinstance(result, tuple) and any(r is None for r in result):
        return tuple(tensors[0].new_empty(0) if r is None else r for r in result)
    return result


@functools.cache
def _quiet() -> None:
    """Fake tensors log every error they raise with its stack. In eager mode the exception says it all."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addFilter(lambda record: record.threadName != _THREAD)


Shape = tuple[Sequence[Any], Sequence[Any]]  # size and stride: numbers, or SymInts


def _trace(
    op: Any, call: Callable[..., Any], tensors: Sequence[torch.Tensor], shapes: Sequence[Shape], env: Any = None
) -> torch.fx.GraphModule:
    """FX graph of the call on fake tensors of these shapes: functional, decomposed as Inductor decomposes."""
    _quiet()
    from torch._dispatch.python import enable_python_dispatcher
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
        UnsupportedOperatorException,
    )
    from torch.fx.experimental.proxy_tensor import make_fx

    from torch_spyre._inductor import registration  # noqa: F401  # late: start-up (fills the tables)

    # The signature does not say which arguments are one tensor, so the trace must not know either: a * a and a * b
    # share a plan. Hence new fakes instead of conversions, which would keep identity and aliasing.
    try:
        symbolic = contextlib.nullcontext() if env is None else enable_python_dispatcher()
        with FakeTensorMode(allow_non_fake_inputs=True, shape_env=env), symbolic:
            fakes = [
                torch.empty_strided(size, stride, dtype=t.dtype, device=t.device)
                for (size, stride), t in zip(shapes, tensors, strict=True)
            ]
            traced = make_fx(torch.func.functionalize(call), decomposition_table=select_decomp_table())(*fakes)
            _write_in_place(traced.graph)
            return traced
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
        raise _unsupported(op, "its result depends on values") from error


def _write_in_place(graph: torch.fx.Graph) -> None:
    """Writes at given places go to the tensors themselves, as in compiled graphs, and not to copies of them."""
    from torch._inductor.fx_passes.reinplace import inplaceable_ops, reinplace_inplaceable_ops_core

    if any(node.target in inplaceable_ops for node in graph.nodes):
        reinplace_inplaceable_ops_core(graph)


def _lower(
    traced: torch.fx.GraphModule, op: Any, args: Sequence[Any], mutated: Sequence[int | None]
) -> tuple[Graph, list[int], list[tuple[str, int]]]:
    """(TileGraph, positions of its inputs among the tensors, how each result is returned).

    Positions below 0 are words of random keys, see `_C.EagerPlan`.
    """
    from torch_spyre._inductor.codegen import graph_buffer  # late: start-up
    from torch_spyre._inductor.tilegraph.build import Builder  # late: start-up

    with _lowered(traced, op) as (lowering, computed):
        builder = Builder(_kernel_name(op), graph_buffer)
        for made in computed:
            builder.add(made)
        mutated = _results(op, mutated, lowering)
        fresh = [v for v, position in zip(lowering.graph_outputs, mutated, strict=True) if position is None]
        graph = builder.graph([builder.returned(v) for v in fresh])
    names = builder.arguments(graph)
    return graph, _places(traced, names), _bindings(op, args, mutated)


def _kernel_name(op: Any) -> str:
    return f"eager_{op.name().split('::')[-1].replace('.', '_')}"


@contextlib.contextmanager
def _lowered(traced: torch.fx.GraphModule, op: Any, env: Any = None) -> Iterator[tuple[Any, list[Any]]]:
    """Inductor's lowering of the graph, as the graph at hand, and the buffers it computes."""
    from torch._inductor import config as inductor_config
    from torch._inductor import ir
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    from torch_spyre._inductor.tilegraph.build import describe  # late: start-up

    fakes = [n.meta["val"] for n in traced.graph.nodes if n.op == "placeholder"]
    _keep_strides(traced)
    lowering = GraphLowering(traced, example_inputs=fakes, shape_env=env)
    with V.set_graph_handler(lowering), V.set_fake_mode(fakes[0].fake_mode):
        with inductor_config.patch(comprehensive_padding=False):  # as compile_fx does for devices that are not GPUs
            lowering.run(*fakes)
        for operation in lowering.operations:
            if not isinstance(operation, ir.ComputedBuffer):
                raise _unsupported(op, reason(op._schema.name.split("::")[-1]) or type(operation).__name__)
        yield lowering, [describe(operation) for operation in lowering.operations]


def _results(op: Any, mutated: Sequence[int | None], lowering: Any) -> Sequence[int | None]:
    if [str(r.type) for r in op._schema.returns] == ["List[Tensor]"]:  # as many as there are, all new
        return [None] * len(lowering.graph_outputs)
    return mutated


def _places(traced: torch.fx.GraphModule, names: Sequence[str]) -> list[int]:
    """The tensor of the call, or the word of a key, that each input of a kernel is."""
    from torch_spyre._inductor.tilegraph.carried import KEY  # late: start-up

    order = {p.name: i for i, p in enumerate(n for n in traced.graph.nodes if n.op == "placeholder")}
    words = sorted(name for name in names if name.startswith(KEY))
    order |= {f"{key}_{word}": -1 - 2 * i - word for i, key in enumerate(_keys(words)) for word in (0, 1)}
    return [order[name] for name in names]


def _bindings(op: Any, args: Sequence[Any], mutated: Sequence[int | None]) -> list[tuple[str, int]]:
    counter = itertools.count()
    found = [("input", m) if m is not None else ("output", next(counter)) for m in mutated]
    return [b if wanted else ("absent", 0) for b, wanted in zip(found, _wanted(op, args, len(found)), strict=True)]


def _wanted(op: Any, args: Sequence[Any], results: int) -> Sequence[bool]:
    """Which gradients the caller asks for: for the others it expects no tensor, and some look (DTensor does)."""
    masks = [x for a, x in zip(op._schema.arguments, args, strict=False) if a.name == "output_mask"]
    return masks[0] if masks and len(masks[0]) == results else [True] * results


def lower_for_sizes(
    op: Any, args: Sequence[Any], kwargs: dict[str, Any], pattern: varying_sizes.Pattern, n: int
) -> families.Lowered:
    """The call with the size that varies as a symbol."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    from torch_spyre._inductor.codegen import graph_buffer  # late: start-up
    from torch_spyre._inductor.dynamic.recipe import encode_expr, plain, record  # late: start-up
    from torch_spyre._inductor.dynamic.space import NotBucketed  # late: start-up

    flat, spec = _flattened(op, args, kwargs)
    args, kwargs = tree_unflatten(flat, spec)
    positions = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]
    tensors = [flat[i] for i in positions]
    env, source = ShapeEnv(), ConstantSource("n")
    symbol = env.create_symbol(n, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    size = env.create_symintnode(symbol, hint=n, source=source)
    shapes = [((), ()) if s is None else s.at(size) for s in pattern.tensors]
    mutated = _mutated_returns(op, args, kwargs, tensors)
    traced = _trace(op, _functional(op, flat, spec, positions), tensors, shapes, env)
    _check_sizes(traced, tensors)
    with _lowered(traced, op, env) as (lowering, computed):
        mutated = list(_results(op, mutated, lowering))
        fresh = [v for v, position in zip(lowering.graph_outputs, mutated, strict=True) if position is None]
        names, made = [v.get_name() for v in fresh], {c.name for c in computed if c.target is None}
        if not made.issuperset(names) or len({*names}) < len(names) or any(v.get_layout().offset != 0 for v in fresh):
            raise NotBucketed("a result is a view of something else")
        recipe = record(_kernel_name(op), computed, names, graph_buffer)
        if recipe is None or list(recipe.symbols) != [str(symbol)]:
            raise NotBucketed(f"it is lowered for the size {n} only")
        results = [[[encode_expr(e) for e in part] for part in (v.get_layout().size, v.get_layout().stride)]
                   for v in fresh]  # fmt: skip
    guards = [plain(g.expr) for g in env.guards]
    places = _places(traced, [g.name for g in recipe.given])
    return families.Lowered(recipe.to_json(), places, _bindings(op, args, mutated), results, guards)


def _keys(words: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.rsplit("_", 1)[0] for name in words))


def _keep_strides(traced: torch.fx.GraphModule) -> None:
    """Results have the strides that PyTorch gives them; left alone, Inductor orders and pads them as it likes."""
    (output,) = traced.graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
    values = [r.meta.get("val") if isinstance(r, torch.fx.Node) else None for r in results]
    output.meta["user_visible_output_idxs"] = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor)]
    output.meta["original_output_strides"] = [_strides_of(r, v) for r, v in zip(results, values, strict=True)]


def _strides_of(result: Any, value: Any) -> Any:
    """Of a result. Fake tensors lose the order of dims where one of these ops meets a 0-d tensor; kernels keep it."""
    if not isinstance(value, torch.Tensor):
        return None
    aten = torch.ops.aten
    if result.target in (aten.div.Tensor_mode, aten.floor_divide.default, aten.copysign.Tensor):
        first, second = (getattr(a, "meta", {}).get("val") for a in result.args)
        if first is not None and first.dim() and (second is None or not second.dim()):
            return torch.empty_like(first).stride()
    return value.stride()


def _mutated_returns(
    op: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor]
) -> list[int | None]:
    """For each result: the position, among the call's tensors, of the argument it is; None for a new tensor."""
    if op is torch.ops.aten._copy_from.default:
        return [1]
    result: list[int | None] = []
    for returned in op._schema.returns:
        position = None
        if returned.alias_info is not None and returned.alias_info.is_write:
            for i, a in enumerate(op._schema.arguments):
                if a.alias_info is not None and a.alias_info.before_set == returned.alias_info.before_set:
                    target = kwargs[a.name] if a.kwarg_only else args[i]
                    position = next(k for k, x in enumerate(tensors) if x is target)
        result.append(position)
    return result
