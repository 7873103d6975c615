# SPDX-License-Identifier: Apache-2.0
"""The attention backend: vLLM hands it the batch of each step; its layers call the card's paged attention."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from spyre_inference.attention.tables import Batch
from spyre_inference.platform import PAGE
from spyre_inference.vllm_api import (
    Attention,
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    EncoderOnlyAttentionSpec,
    KVCacheLayout,
    MultipleOf,
)
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ops.kernels.paged_attention import Form, PagedTables, paged_attention, with_nan_in_keys, write_pages


class SpyreAttentionBackend(AttentionBackend):
    forward_includes_kv_cache_update = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16"]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [PAGE]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [32, 64, 80, 96, 128, 160, 192, 256]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, AttentionType.ENCODER_ONLY)

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        return SpyreAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[AttentionMetadataBuilder]:
        return BatchBuilder


class BatchBuilder(AttentionMetadataBuilder[Batch]):
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Batch:
        common = common_attn_metadata
        cached = not isinstance(self.kv_cache_spec, EncoderOnlyAttentionSpec)
        if cached and common.causal is not True:
            raise UnsupportedOp("attention that is not causal is not implemented over the paged cache")
        count = common.num_reqs
        batch = Batch(
            common.query_start_loc[: count + 1].numpy().copy(),
            common.seq_lens[:count].numpy().copy(),
            common.block_table_tensor[:count].numpy().copy(),
            common.slot_mapping[: common.num_actual_tokens].numpy().copy(),
        )
        return batch if cached else batch.with_own_tiles_as_pages()


class SpyreAttentionImpl(AttentionImpl):
    """Holds what a layer is; `CardAttention` computes."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        if sinks is not None:
            raise UnsupportedOp("attention sinks are not implemented on the card")
        if kv_sharing_target_layer_name is not None:
            raise UnsupportedOp("layers that share another layer's keys and values are not implemented on the card")
        if attn_type == AttentionType.ENCODER_ONLY and sliding_window is not None:
            raise UnsupportedOp("windows in layers of an encoder are not implemented on the card")
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, num_kv_heads, head_size
        self.sliding_window = sliding_window
        self.alibi_slopes = alibi_slopes
        self.scale = float(scale)
        self.form = Form(PAGE, self.scale, sliding_window, logits_soft_cap or None)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise AssertionError("layers on the card have a forward of their own")


class Current:
    """The tables of the step that is running, where a compiled block finds them."""

    tables: PagedTables


class CardAttention(Attention):
    """vLLM's layer on the card: no lookup by name, so that one graph serves all layers."""

    keys: torch.Tensor
    values: torch.Tensor
    slopes: torch.Tensor | None
    form: Form
    current: Current
    cached: bool

    @staticmethod
    def become(layer: Attention, current: Current, device: torch.device) -> None:
        layer.__class__ = CardAttention
        assert isinstance(layer, CardAttention)
        layer.form = layer.impl.form
        layer.cached = layer.attn_type == AttentionType.DECODER
        layer.current = current
        slopes = layer.impl.alibi_slopes
        made = None if slopes is None else torch.tensor(slopes, dtype=torch.float16).to(device)
        layer.register_buffer("slopes", made, persistent=False)

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        return super().get_kv_cache_spec(vllm_config) if self.cached else None

    def take_pages(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.register_buffer("keys", keys, persistent=False)
        self.register_buffer("values", values, persistent=False)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output_shape: torch.Size | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        tables = self.current.tables
        query = query.view(-1, self.num_heads, self.head_size)
        key = key.view(-1, self.num_kv_heads, self.head_size)
        value = value.view(-1, self.num_kv_heads, self.head_size_v)
        if self.cached:
            write_pages(key, value, self.keys, self.values, tables.slots)
            keys, values = self.keys, self.values
        else:  # each tile of the step is a page
            keys, values = (x.index_select(0, tables.tile_rows) for x in with_nan_in_keys(key, value))
        result = paged_attention(query, keys, values, tables, self.form, self.slopes)
        return result.view(-1, self.num_heads * self.head_size_v)
