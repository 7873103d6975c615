# SPDX-License-Identifier: Apache-2.0
"""``x[2:].index_add_(...)`` in a compiled graph: one write into x, at the places of the view.

PyTorch makes such a graph functional: a write into a copy of the view, which then replaces that part of x. Inductor
writes the latter in place, but copies the view twice. Here both become one op, whose form in place it finds
(`patches/inductor.py`). Inductor calls this pass for graphs of the device, before it looks for such forms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphModulePass, get_hash_for_files
from torch._inductor.fx_utils import get_node_storage
from torch._inductor.lowering import lowerings, register_lowering

from torch_spyre._inductor.lowering.moves import done
from torch_spyre.decompositions import custom

aten = torch.ops.aten
_VIEW_OF = {aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int}
_FORMS: dict[Any, str] = {
    aten.index_put.default: "index_put",
    custom.put: "put",
    aten.scatter.src: "scatter",
    aten.scatter_add.default: "scatter",
}


class ViewWrites(CustomGraphModulePass):
    def __call__(self, gm: torch.fx.GraphModule) -> None:
        graph, bases = gm.graph, set[torch.fx.Node]()
        for node in list(graph.nodes):
            base = _base_of(node, bases) if node.target in _FORMS else None
            end = _end_of(node, base) if base is not None else None
            if base is None or end is None:
                continue
            with graph.inserting_before(end):
                written = graph.call_function(custom.write_view, _arguments(node, base))
            written.meta.update(end.meta)
            end.replace_all_uses_with(written)
            bases.add(written)
        if bases:
            graph.eliminate_dead_code()

    def uuid(self) -> bytes:
        return bytes(get_hash_for_files((__file__, custom.__file__)))


def _base_of(write: torch.fx.Node, bases: set[torch.fx.Node]) -> torch.fx.Node | None:
    """The contiguous input of the graph, or what such a write has left of it, that the write's target is a view of."""
    node = write.args[0]
    while isinstance(node, torch.fx.Node) and _is_view(node):
        node = node.args[0]
    if not isinstance(node, torch.fx.Node) or node is write.args[0] or (node.op != "placeholder" and node not in bases):
        return None
    value = node.meta.get("val")
    plain = isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape) and value.is_contiguous()
    return node if plain else None


def _is_view(node: torch.fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.is_view


def _place(value: torch.Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), value.stride(), value.storage_offset()


def _end_of(write: torch.fx.Node, base: torch.fx.Node) -> torch.fx.Node | None:
    """The node that is all of the base with the write in it, if nobody else looks at what is between."""
    node, here = write, write.args[0].meta["val"]  # where in the base the node's value belongs
    while _place(here) != _place(base.meta["val"]):
        users = list(node.users)
        if len(users) != 1:
            return None
        node, before = users[0], node
        try:
            if node.target in _VIEW_OF and node.args[1] is before:
                around = node.args[0].meta["val"]
                if get_node_storage(node.args[0]) != get_node_storage(base):
                    return None
                if _place(_VIEW_OF[node.target](around, *node.args[2:], **node.kwargs)) != _place(here):
                    return None
                here = around
            elif _is_view(node) and node.args[0] is before:
                here = node.target(here, *node.args[1:], **node.kwargs)
            else:
                return None
        except RuntimeError:  # no view of that part of the base
            return None
    return node


def _arguments(write: torch.fx.Node, base: torch.fx.Node) -> tuple[Any, ...]:
    size, stride, offset = _place(write.args[0].meta["val"])
    offset -= base.meta["val"].storage_offset()
    form, rest = _FORMS[write.target], [*write.args[1:]]
    if form == "index_put":
        indices, values, *add = rest
        operands, dim, adds = [values, *indices], 0, bool(add and add[0])
    else:
        dim, *operands = rest
        adds = bool(operands.pop()) if form == "put" else write.target is aten.scatter_add.default
    return base, operands, list(size), list(stride), offset, form, dim, adds


def _lower_in_place(x: Any, operands: Any, size: Any, stride: Any, offset: Any, form: str, dim: int, add: bool) -> Any:
    view = lowerings[aten.as_strided.default](x, size, stride, offset)
    target, arguments = custom.form_in_place(form, operands, dim, add)
    lowerings[target](view, *arguments)
    return x


def _lower(x: Any, *rest: Any) -> Any:
    whole = lowerings[aten.clone.default](x)
    whole.realize()
    return done(_lower_in_place(whole, *rest))


def register() -> None:
    register_lowering(custom.write_view, type_promotion_kind=None)(_lower)
    register_lowering(custom.write_view_, type_promotion_kind=None)(_lower_in_place)
