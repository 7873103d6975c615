# SPDX-License-Identifier: Apache-2.0
"""The `ktdp` dialect and the context in which KTIR modules are parsed and verified."""

from __future__ import annotations

from functools import cache

from xdsl.context import Context
from xdsl.dialects import builtin, func, math, memref
from xdsl.ir import Dialect

from torch_spyre.ir.ktir.dialect.arith_ops import Arith
from torch_spyre.ir.ktir.dialect.contraction_ops import BatchMatmulOp, MatmulOp
from torch_spyre.ir.ktir.dialect.delivery_ops import DELIVERY_OPS, InterTileConsumeOp, InterTileReduceOp, YieldReducedOp
from torch_spyre.ir.ktir.dialect.indirect_ops import ConstructIndirectAccessTileOp, RegionTerminatorOp
from torch_spyre.ir.ktir.dialect.inter_tile_ops import InterTileProduceOp, YieldPartialOp
from torch_spyre.ir.ktir.dialect.linalg_ops import Linalg, ReduceOp
from torch_spyre.ir.ktir.dialect.memory_ops import (
    ConstructAccessTileOp,
    ConstructDistributedMemoryViewOp,
    ConstructMemoryViewOp,
    GetComputeTileIdOp,
    LoadOp,
    RuntimeArgExtractOp,
    StoreOp,
)
from torch_spyre.ir.ktir.dialect.overrides import replace_ops
from torch_spyre.ir.ktir.dialect.scf_ops import ForOp, Scf
from torch_spyre.ir.ktir.dialect.spyreop import SpyreOp
from torch_spyre.ir.ktir.dialect.spyreop_tensor import TENSOR_OPS
from torch_spyre.ir.ktir.dialect.tensor_ops import Tensor
from torch_spyre.ir.ktir.dialect.types import (
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
        *DELIVERY_OPS,
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
        Tensor,
        Linalg,
        Scf,
        replace_ops(SpyreOp, TENSOR_OPS),
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
