# SPDX-License-Identifier: Apache-2.0
"""The `ktdp` dialect and the context in which KTIR modules are parsed and verified."""

from __future__ import annotations

from functools import cache

from xdsl.context import Context
from xdsl.dialects import builtin, func, math, memref, tensor
from xdsl.ir import Dialect

from torch_spyre.ktir.arith_ops import Arith
from torch_spyre.ktir.indirect_ops import ConstructIndirectAccessTileOp, RegionTerminatorOp
from torch_spyre.ktir.inter_tile_ops import (
    InterTileConsumeOp,
    InterTileProduceOp,
    InterTileReduceOp,
    YieldPartialOp,
    YieldReducedOp,
)
from torch_spyre.ktir.memory_ops import (
    ConstructAccessTileOp,
    ConstructDistributedMemoryViewOp,
    ConstructMemoryViewOp,
    GetComputeTileIdOp,
    LoadOp,
    RuntimeArgExtractOp,
    StoreOp,
)
from torch_spyre.ktir.overrides import BatchMatmulOp, ForOp, Linalg, MatmulOp, ReduceOp, Scf
from torch_spyre.ktir.spyreop import SpyreOp
from torch_spyre.ktir.types import (
    AccessTileType,
    LegacyMemorySpaceAttr,
    MemorySpaceAttr,
    RuntimeArgType,
    TileFutureType,
)

Ktdp = Dialect(
    "ktdp",
    [
        GetComputeTileIdOp,
        ConstructMemoryViewOp,
        ConstructDistributedMemoryViewOp,
        ConstructAccessTileOp,
        ConstructIndirectAccessTileOp,
        RegionTerminatorOp,
        LoadOp,
        StoreOp,
        RuntimeArgExtractOp,
        InterTileProduceOp,
        InterTileConsumeOp,
        InterTileReduceOp,
        YieldPartialOp,
        YieldReducedOp,
    ],
    [MemorySpaceAttr, LegacyMemorySpaceAttr, AccessTileType, RuntimeArgType, TileFutureType],
)


@cache
def context() -> Context:
    """The xDSL context with every dialect that KTIR uses."""
    ctx = Context()
    for dialect in (
        builtin.Builtin,
        func.Func,
        Arith,
        math.Math,
        memref.MemRef,
        tensor.Tensor,
        Linalg,
        Scf,
        SpyreOp,
        Ktdp,
    ):
        ctx.load_dialect(dialect)
    return ctx


__all__ = [
    "AccessTileType",
    "BatchMatmulOp",
    "ConstructAccessTileOp",
    "ConstructDistributedMemoryViewOp",
    "ConstructIndirectAccessTileOp",
    "ConstructMemoryViewOp",
    "ForOp",
    "GetComputeTileIdOp",
    "InterTileConsumeOp",
    "InterTileProduceOp",
    "InterTileReduceOp",
    "Ktdp",
    "LoadOp",
    "MatmulOp",
    "MemorySpaceAttr",
    "ReduceOp",
    "RegionTerminatorOp",
    "RuntimeArgExtractOp",
    "RuntimeArgType",
    "StoreOp",
    "TileFutureType",
    "YieldPartialOp",
    "YieldReducedOp",
    "context",
]
