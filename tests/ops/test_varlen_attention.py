# SPDX-License-Identifier: Apache-2.0
"""`torch.nn.attention.varlen` on the card: lengths as data, windows, pages, gradients."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.varlen import AuxRequest, varlen_attn, varlen_attn_out

from torch_spyre.errors import InvalidArgument

HALF_ULP = 2.0**-10


@pytest.fixture(autouse=True)
def _own_graphs():
    """Every test compiles the same function of PyTorch, which has a limit of recompilations."""
    torch._dynamo.reset()


def reference(q, k, v, starts_q, starts_k, window=(-1, -1), used=None, scale=None):
    """Sequence by sequence, in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    groups = q.size(1) // k.size(1)
    parts = []
    for i, (a, b) in enumerate(itertools.pairwise(starts_q)):
        c, e = starts_k[i], starts_k[i + 1]
        e = e if used is None else c + used[i]
        keys, values = (x[c:e].transpose(0, 1).repeat_interleave(groups, 0) for x in (k, v))
        scores = q[a:b].transpose(0, 1) @ keys.transpose(1, 2) * (1 / math.sqrt(q.size(-1)) if scale is None else scale)
        own = torch.arange(b - a)[:, None] + (e - c) - (b - a)
        other = torch.arange(e - c)[None]
        seen = torch.ones(b - a, e - c, dtype=torch.bool)
        seen &= (other >= own - window[0]) if window[0] >= 0 else seen
        seen &= (other <= own + window[1]) if window[1] >= 0 else seen
        weights = torch.softmax(scores.masked_fill(~seen, -math.inf), -1)
        parts.append((torch.where(seen.any(-1, keepdim=True), weights, 0.0) @ values).transpose(0, 1))
    return torch.cat([*parts, torch.zeros_like(q[starts_q[-1] :])])


def starts(lengths):
    return [0, *itertools.accumulate(lengths)]


def on_card(numbers):
    return torch.tensor(numbers, dtype=torch.int32, device="spyre")


def drawn(*shape):
    return torch.randn(shape).half().to("spyre")


def close(result, expected, q, k, v):
    largest = q.cpu().double().norm(dim=-1).max().item() * k.cpu().double().norm(dim=-1).max().item()
    scores = largest / math.sqrt(q.size(-1))
    bound = v.cpu().double().abs().max().item() * (math.expm1(2 * HALF_ULP * scores) + 3 * HALF_ULP)
    assert (result.cpu().double() - expected).abs().max().item() <= bound


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("groups, window", [(1, (-1, -1)), (1, (-1, 0)), (3, (5, 0)), (3, (3, 2))])
def test_windows_and_groups(groups, window, compiled):
    queries, keys = starts([5, 0, 55, 17]), starts([9, 11, 55, 15])
    q, k, v = drawn(80, 2 * groups, 64), drawn(90, 2, 64), drawn(90, 2, 64)
    attend = torch.compile(varlen_attn, fullgraph=True) if compiled else varlen_attn
    result = attend(q, k, v, on_card(queries), on_card(keys), 55, 55, window_size=window, enable_gqa=groups > 1)
    close(result, reference(q.cpu(), k.cpu(), v.cpu(), queries, keys, window), q, k, v)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=5), left=st.integers(-1, 9)
)
def test_any_lengths(lengths, left):
    """Tensors of one size, so that one program serves every division."""
    queries, keys = starts([a for a, _ in lengths]), starts([b for _, b in lengths])
    queries, keys = ([*s, *[s[-1]] * (6 - len(s))] for s in (queries, keys))
    q, k, v = drawn(150, 2, 64), drawn(150, 1, 64), drawn(150, 1, 64)
    result = varlen_attn(q, k, v, on_card(queries), on_card(keys), 30, 30, window_size=(left, 0), enable_gqa=True)
    close(result, reference(q.cpu(), k.cpu(), v.cpu(), queries, keys, (left, 0)), q, k, v)


def test_pages():
    """Keys in pages of a pool, of which each sequence names its own; only the first keys of the last page count."""
    used, queries = [37, 5, 48], starts([3, 1, 16])
    table = torch.tensor([[5, 2, 7], [1, 0, 0], [3, 6, 4]], dtype=torch.int32)
    pool_k, pool_v = drawn(8, 16, 2, 64), drawn(8, 16, 2, 64)
    q = drawn(20, 4, 64)
    result = varlen_attn(
        q, pool_k, pool_v, on_card(queries), None, 16, 48, window_size=(-1, 0), enable_gqa=True,
        seqused_k=on_card(used), block_table=table.to("spyre"),
    )  # fmt: skip
    k, v = (x.cpu()[table.long()].reshape(-1, 2, 64) for x in (pool_k, pool_v))
    close(result, reference(q.cpu(), k, v, queries, [0, 48, 96, 144], (-1, 0), used), q, k, v)


def test_used_keys_of_a_cache():
    used, queries, keys = [4, 16], starts([1, 1]), starts([16, 16])
    q, k, v = drawn(2, 2, 64), drawn(32, 2, 64), drawn(32, 2, 64)
    result = varlen_attn(q, k, v, on_card(queries), on_card(keys), 1, 16, seqused_k=on_card(used))
    close(result, reference(q.cpu(), k.cpu(), v.cpu(), queries, keys, used=used), q, k, v)


def test_statistics_and_given_result():
    lengths = starts([10, 22])
    q, k, v = (drawn(32, 2, 64) for _ in range(3))
    cu = on_card(lengths)
    result, sums = varlen_attn(q, k, v, cu, cu, 22, 22, return_aux=AuxRequest(lse=True))
    scores = [
        (q.cpu().double()[a:b].transpose(0, 1) @ k.cpu().double()[a:b].permute(1, 2, 0)) / 8
        for a, b in itertools.pairwise(lengths)
    ]
    expected = torch.cat([torch.logsumexp(s, -1) for s in scores], -1)
    allowed = 2 * HALF_ULP * max(s.abs().max().item() for s in scores) + 1e-4
    assert (sums.cpu().double() - expected).abs().max().item() <= allowed
    given_result = torch.empty_like(q)
    assert varlen_attn_out(given_result, q, k, v, cu, cu, 22, 22) is given_result
    assert torch.equal(given_result.cpu(), result.cpu())


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(compiled):
    queries, keys = starts([7, 30]), starts([9, 30])
    q = torch.randn(37, 4, 32, device="spyre", requires_grad=True)
    k, v = (torch.randn(39, 2, 32, device="spyre", requires_grad=True) for _ in range(2))
    attend = torch.compile(varlen_attn, fullgraph=True) if compiled else varlen_attn
    result = attend(q, k, v, on_card(queries), on_card(keys), 30, 30, window_size=(-1, 0), enable_gqa=True, scale=0.3)
    weight = torch.randn(result.shape)
    (result * weight.to("spyre")).sum().backward()
    host = [x.detach().cpu().double().requires_grad_() for x in (q, k, v)]
    (reference(*host, queries, keys, (-1, 0), scale=0.3) * weight.double()).sum().backward()
    for ours, theirs in zip((q, k, v), host, strict=True):
        torch.testing.assert_close(ours.grad.cpu().double(), theirs.grad, rtol=1e-3, atol=1e-3)


def test_what_is_missing_is_named():
    q, k = drawn(4, 1, 64), drawn(2, 4, 1, 64)
    cu = on_card([0, 4])
    with pytest.raises(InvalidArgument, match="block_table needs seqused_k"):
        varlen_attn(q, k, k, cu, None, 4, 4, block_table=on_card([[0, 1]]))
    with pytest.raises(InvalidArgument, match="cu_seq_k is None"):
        varlen_attn(q, q, q, cu, None, 4, 4)
