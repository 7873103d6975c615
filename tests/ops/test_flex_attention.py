# SPDX-License-Identifier: Apache-2.0
"""FlexAttention on the card: functions on scores and masks, groups of heads, statistics and gradients."""

import math

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

HALF_ULP = 2.0**-10  # of the card's 16 bits
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _own_graphs():
    """Every test compiles the same function of PyTorch, which has a limit of recompilations."""
    torch._dynamo.reset()


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q >= k) & (q - k <= 20)


def prefix(b, h, q, k):
    return (k < 10) | (q >= k)


def heads_apart(b, h, q, k):
    return (h + b) % 2 * k <= q


def alibi(score, b, h, q, k):
    return score - (q - k).abs() * torch.exp2(-(h + 1.0))


def soft_cap(score, b, h, q, k):
    return 5 * torch.tanh(score / 5)


def squared(score, b, h, q, k):
    return score * score * 0.1


def reference(q, k, v, score_mod, mask_mod, scale=None):
    """In float64, with the functions called on whole grids of places."""
    q, k, v = (x.double() for x in (q, k, v))
    groups = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.size(-1)) if scale is None else scale)
    places = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    changed = score_mod(scores, *places) if score_mod else scores
    if mask_mod:
        changed = changed.masked_fill(~mask_mod(*places).expand_as(changed), -math.inf)
    return torch.nan_to_num(torch.softmax(changed, -1)) @ v, torch.logsumexp(changed, -1), changed


def drawn(*shape, requires_grad=False):
    x = torch.randn(shape).half().to("spyre")
    return x.requires_grad_(requires_grad)


def bound(q, k, v):
    """The scores are rounded to 16 bits before the softmax, the weights and the result after it."""
    k = k.cpu().double().repeat_interleave(q.size(1) // k.size(1), 1)
    products = (q.cpu().double() @ k.transpose(-2, -1)).abs().max().item() / math.sqrt(q.size(-1))
    return v.cpu().double().abs().max().item() * (math.expm1(2 * HALF_ULP * products) + 3 * HALF_ULP)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "score_mod, mask_mod",
    [
        (None, None),
        (soft_cap, None),
        (alibi, causal),
        (None, window),
        (None, prefix),
        (soft_cap, heads_apart),
    ],
)
def test_common_functions(score_mod, mask_mod, compiled):
    q, k, v = drawn(2, 4, 70, 64), drawn(2, 2, 90, 64), drawn(2, 2, 90, 32)
    blocks = create_block_mask(mask_mod, 2, 4, 70, 90, device="spyre") if mask_mod else None
    attend = torch.compile(flex_attention, fullgraph=True) if compiled else flex_attention
    result = attend(q, k, v, score_mod=score_mod, block_mask=blocks, enable_gqa=True)
    expected, _, _ = reference(q.cpu(), k.cpu(), v.cpu(), score_mod, mask_mod)
    assert result.device.type == "spyre" and result.dtype == torch.float16
    assert (result.cpu().double() - expected).abs().max().item() <= bound(q, k, v)


def test_rows_without_a_visible_key_give_zero():
    q, k, v = drawn(1, 1, 16, 64), drawn(1, 1, 16, 64), drawn(1, 1, 16, 64)
    blocks = create_block_mask(lambda b, h, i, j: i - 8 >= j, 1, 1, 16, 16, device="spyre")
    result = flex_attention(q, k, v, block_mask=blocks)
    assert torch.equal(result[0, 0, :8].cpu(), torch.zeros(8, 64, dtype=torch.float16))
    assert result[0, 0, 8:].cpu().abs().min() > 0


@pytest.mark.parametrize("compiled", [False, True])
def test_tensors_that_a_function_reads(compiled):
    """A bias by head and place, and document numbers: tensors of the card inside the functions."""
    q, k, v = (drawn(1, 3, 64, 64) for _ in range(3))
    bias = torch.randn(3, 64).to("spyre")
    documents = torch.repeat_interleave(torch.arange(4), 16).to("spyre")

    def biased(score, b, h, i, j):
        return score + bias[h, j]

    def same_document(b, h, i, j):
        return documents[i] == documents[j]

    blocks = create_block_mask(same_document, 1, 1, 64, 64, device="spyre")
    attend = torch.compile(flex_attention, fullgraph=True) if compiled else flex_attention
    result = attend(q, k, v, score_mod=biased, block_mask=blocks)
    on_host, document = bias.cpu(), documents.cpu()
    expected, _, _ = reference(
        q.cpu(),
        k.cpu(),
        v.cpu(),
        lambda s, b, h, i, j: s + on_host[h, j],
        lambda b, h, i, j: document[i] == document[j],
    )
    assert (result.cpu().double() - expected).abs().max().item() <= bound(q, k, v)


@pytest.mark.parametrize("compiled", [False, True])
def test_statistics(compiled):
    q, k, v = (drawn(1, 2, 32, 64) for _ in range(3))
    attend = torch.compile(flex_attention, fullgraph=True) if compiled else flex_attention
    _, aux = attend(q, k, v, score_mod=alibi, return_aux=AuxRequest(lse=True, max_scores=True))
    _, sums, scores = reference(q.cpu(), k.cpu(), v.cpu(), alibi, None)
    allowed = 2 * HALF_ULP * scores.abs().max().item() + 1e-4
    assert (aux.lse.cpu().double() - sums).abs().max().item() <= allowed
    assert (aux.max_scores.cpu().double() - scores.amax(-1)).abs().max().item() <= allowed


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(compiled):
    q, k, v = (torch.randn(1, heads, 48, 32, device="spyre", requires_grad=True) for heads in (4, 2, 2))
    blocks = create_block_mask(causal, 1, 1, 48, 48, device="spyre")
    attend = torch.compile(flex_attention, fullgraph=True) if compiled else flex_attention
    result = attend(q, k, v, score_mod=squared, block_mask=blocks, enable_gqa=True)
    weight = torch.randn(result.shape)
    (result * weight.to("spyre")).sum().backward()
    host = [x.detach().cpu().double().requires_grad_() for x in (q, k, v)]
    (reference(*host, squared, causal)[0] * weight.double()).sum().backward()
    for ours, theirs in zip((q, k, v), host, strict=True):
        torch.testing.assert_close(ours.grad.cpu().double(), theirs.grad, rtol=1e-3, atol=1e-3)


def test_autocast():
    q, k, v = (torch.randn(1, 2, 32, 64, device="spyre") for _ in range(3))
    with torch.autocast("spyre", dtype=torch.float16):
        result = flex_attention(q, k, v, score_mod=soft_cap)
    assert result.dtype == torch.float16
    expected, _, _ = reference(q.cpu(), k.cpu(), v.cpu(), soft_cap, None)
    assert (result.cpu().double() - expected).abs().max().item() <= 2 * bound(q, k, v)


def test_one_graph_for_several_lengths():
    compiled = torch.compile(flex_attention, dynamic=True, fullgraph=True)
    for n in (64, 96, 130):
        q, k, v = (drawn(1, 2, n, 64) for _ in range(3))
        result = compiled(q, k, v, score_mod=alibi)
        expected, _, _ = reference(q.cpu(), k.cpu(), v.cpu(), alibi, None)
        assert (result.cpu().double() - expected).abs().max().item() <= bound(q, k, v)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_result_lies_as_the_queries_do(compiled):
    """Heads are usually a transposed view; their results are viewed as rows again without a copy."""

    def rows(q, k, v):
        return flex_attention(q, k, v).transpose(1, 2).view(2, 24, -1)

    q, k, v = (drawn(2, 24, 4, 64).transpose(1, 2) for _ in range(3))
    result = (torch.compile(rows, fullgraph=True) if compiled else rows)(q, k, v)
    expected = reference(q.cpu(), k.cpu(), v.cpu(), None, None)[0].transpose(1, 2).reshape(2, 24, -1)
    assert (result.cpu().double() - expected).abs().max().item() <= bound(q, k, v)


def test_other_devices_are_still_refused():
    x = torch.empty(1, 1, 8, 64, device="meta")
    with pytest.raises(ValueError, match="only supported on"):
        flex_attention(x, x, x)
