# SPDX-License-Identifier: Apache-2.0
"""pytest tests/distributed/test_parallel_models.py: models that several cards share, compared with one card.

Every rank also computes what one card makes of the whole model, on its own card, so that both sides use the same
weights and data.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from torch_spyre.errors import InvalidArgument, UnsupportedOp

PROMPTS = (Path(__file__).parents[1] / "models/data/prompts.txt").read_text().splitlines()
LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "num_hidden_layers": 2,
}
TINY = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 500,
    "tie_word_embeddings": True,
    "num_hidden_layers": 3,
}


def llama(**figures: Any) -> Any:
    """A model with random weights, the same on every rank, on the host."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**figures)).to(torch.float16).eval().requires_grad_(False)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """The smallest over all rows."""
    return float(F.cosine_similarity(a.cpu().double(), b.cpu().double(), dim=-1).min())


# Tensor parallelism


def whole_and_share(figures: dict[str, Any]) -> tuple[float, list[int], list[int]]:
    """Cosine of the logits; greedy tokens of one card and of all."""
    from torch_spyre.models.blocks import compile_blocks
    from torch_spyre.models.parallel import parallelize

    ids = torch.arange(5, 25)[None]
    whole = llama(**figures).to("spyre")
    with torch.no_grad():
        expected = whole(ids.to("spyre")).logits
        share = parallelize(llama(**figures).to("spyre"))
        found = share(ids.to("spyre")).logits
        length = {
            "max_new_tokens": 12,
            "min_new_tokens": 12,
            "do_sample": False,
            "attention_mask": torch.ones_like(ids),
        }
        texts = [compile_blocks(model, fullgraph=True).generate(ids, **length)[0].tolist() for model in (whole, share)]
    return cosine(found, expected), *texts


@pytest.mark.parametrize("tied", [True, False])
def test_a_share_writes_what_the_whole_writes(ranks: Ranks, tied: bool) -> None:
    for near, one, all_ranks in ranks.run(2, whole_and_share, {**TINY, "tie_word_embeddings": tied}):
        assert near >= 0.9999
        assert one == all_ranks


def recorded_steps(count: int) -> tuple[list[int], int, int]:
    """Greedy tokens; how many steps came from a recording; collectives that this rank took part in meanwhile."""
    from transformers import StaticCache

    from torch_spyre import _C
    from torch_spyre.distributed.groups import groups
    from torch_spyre.models.blocks import compile_blocks
    from torch_spyre.models.parallel import parallelize

    model = compile_blocks(parallelize(llama(**TINY).to("spyre")))
    cache = StaticCache(config=model.config, max_cache_len=64)
    replays = 0
    replay = _C.Recording.replay

    def counting(recording: Any) -> None:
        nonlocal replays
        replays += 1
        replay(recording)

    _C.Recording.replay = counting
    token, tokens = torch.tensor([[7]]), []
    (world,) = (group for group in groups() if group.name == dist.group.WORLD.group_name)
    before = world.links.traffic()["collectives"]
    try:
        with torch.inference_mode():
            for place in range(count):
                out = model(input_ids=token, position_ids=torch.tensor([[place]]), past_key_values=cache)
                token = out.logits[:, -1:].cpu().argmax(-1)
                tokens.append(int(token))
    finally:
        _C.Recording.replay = replay
    return tokens, replays, world.links.traffic()["collectives"] - before


def test_steps_with_collectives_are_replayed(ranks: Ranks) -> None:
    steps, collectives = 12, 2 * TINY["num_hidden_layers"] + 1  # two sums in a layer, and the words of all
    found = ranks.run(2, recorded_steps, steps)
    for tokens, replays, exchanged in found:
        assert tokens == found[0][0]
        assert replays >= steps - 4
        assert exchanged == steps * collectives


def launches_of_steps(layers: tuple[int, ...]) -> list[int]:
    """Launches of a recorded decoding step, for models of so many layers."""
    from transformers import StaticCache

    from torch_spyre.models.blocks import compile_blocks
    from torch_spyre.models.parallel import parallelize

    counts = []
    for number in layers:
        model = compile_blocks(parallelize(llama(**{**TINY, "num_hidden_layers": number}).to("spyre")), fullgraph=True)
        cache = StaticCache(config=model.config, max_cache_len=64)
        with torch.inference_mode():
            for place in range(6):
                model(input_ids=torch.tensor([[7]]), position_ids=torch.tensor([[place]]), past_key_values=cache)
        (step,) = model.forward.steps.steps.values()
        counts.append(len(step.recording))
    return counts


def test_a_block_is_one_launch_for_each_segment(ranks: Ranks) -> None:
    """Two sums cut a block into three segments."""
    for two, four in ranks.run(2, launches_of_steps, (2, 4)):
        assert four - two == 2 * 3


def layouts_of_share() -> list[bool]:
    from torch_spyre.device.modules import weight_layout
    from torch_spyre.models.parallel import Share, parallelize

    model = parallelize(llama(**TINY).to("spyre"))
    shares = [m for m in model.modules() if isinstance(m, Share)]
    assert len(shares) == 7 * TINY["num_hidden_layers"] + 1
    return [
        m.weight.device_tensor_layout() == weight_layout(m.weight.shape, m.weight.dtype) and m.weight.is_contiguous()
        for m in shares
    ]


def test_shares_lie_as_matmul_reads_them(ranks: Ranks) -> None:
    assert all(all(found) for found in ranks.run(2, layouts_of_share))


def loaded_share(folder: str) -> tuple[bool, float]:
    """A checkpoint read share by share is the model that was cut into shares."""
    from torch_spyre.models.checkpoint import load
    from torch_spyre.models.parallel import parallelize

    cut, read = parallelize(llama(**TINY).to("spyre")), load(folder, group=dist.group.WORLD)
    expected, found = dict(cut.named_parameters()), dict(read.named_parameters())
    same = expected.keys() == found.keys() and all(torch.equal(found[k].cpu(), v.cpu()) for k, v in expected.items())
    ids = torch.arange(5, 25)[None].to("spyre")
    with torch.no_grad():
        return same, cosine(read(ids).logits, llama(**TINY).to("spyre")(ids).logits)


def test_a_checkpoint_is_read_by_shares(ranks: Ranks, tmp_path: Path) -> None:
    llama(**TINY).save_pretrained(tmp_path)
    for same, near in ranks.run(2, loaded_share, str(tmp_path)):
        assert same and near >= 0.9999


def split_heads(figures: dict[str, Any]) -> None:
    from torch_spyre.models.parallel import Share, parallelize

    model = llama(**figures)
    try:
        parallelize(model)
    finally:
        assert not any(isinstance(module, Share) for module in model.modules())


def test_heads_that_do_not_divide(ranks: Ranks) -> None:
    cases = {
        "3 attention heads, which 2 ranks do not share evenly; start 1 or 3": {
            "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 192},
        "1 key/value heads, which 2 ranks do not share evenly; start 1": {"num_key_value_heads": 1},
        "features, which 2 ranks do not share evenly": {"intermediate_size": 385},
    }  # fmt: skip
    for message, change in cases.items():
        for outcome in ranks.outcomes(2, split_heads, {**TINY, **change}):
            assert outcome is not None and isinstance(outcome.error, InvalidArgument), outcome
            assert message in str(outcome.error)


def split_gpt2() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from torch_spyre.models.parallel import parallelize

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2))
    model.tp_plan = {}
    parallelize(model)


def test_a_model_without_a_plan(ranks: Ranks) -> None:
    for outcome in ranks.outcomes(2, split_gpt2):
        assert outcome is not None and isinstance(outcome.error, UnsupportedOp), outcome
        assert "parallelize_module" in str(outcome.error)


# Llama-3.2-1B's own sizes, and real weights


@pytest.fixture(scope="module")
def llama_1b(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, torch.Tensor]]:
    """A checkpoint, and the logits of one card."""
    from torch_spyre.models.checkpoint import load

    folder = tmp_path_factory.mktemp("llama")
    llama(**LLAMA_1B).save_pretrained(folder)
    with torch.no_grad():
        logits = load(folder)(torch.arange(100, 124)[None].to("spyre")).logits.cpu()
    yield folder, logits
    shutil.rmtree(folder)


def logits_of_share(folder: str) -> torch.Tensor:
    from torch_spyre.models.blocks import compile_blocks
    from torch_spyre.models.checkpoint import load

    model = compile_blocks(load(folder, group=dist.group.WORLD), fullgraph=True)
    with torch.no_grad():
        return model(torch.arange(100, 124)[None].to("spyre")).logits.cpu()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4, 8])
def test_llama_1b(ranks: Ranks, llama_1b: tuple[Path, torch.Tensor], size: int) -> None:
    folder, expected = llama_1b
    for found in ranks.run(size, logits_of_share, str(folder)):
        assert cosine(found, expected) >= 0.9999


def texts_of(folder: str, tokens: int, group: bool) -> list[list[int]]:
    from transformers import PreTrainedTokenizerFast, StaticCache

    from torch_spyre.models.blocks import compile_blocks
    from torch_spyre.models.checkpoint import load

    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    model = compile_blocks(load(folder, group=dist.group.WORLD if group else None))
    texts = []
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        cache = StaticCache(config=model.config, max_cache_len=128)
        length = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        made = model.generate(**ids, past_key_values=cache, **length)
        texts.append(made[0, -tokens:].tolist())
    return texts


@pytest.mark.slow
def test_smollm2_on_three_cards(ranks: Ranks) -> None:
    """The sums of three cards are rounded once more than those of one: near ties may fall the other way."""
    from torch_spyre.models.smollm2 import checkpoint

    folder = str(checkpoint())
    one = texts_of(folder, 32, False)
    found = ranks.run(3, texts_of, folder, 32, True)
    assert found[0] == found[1] == found[2]
    equal = [a == b for a, b in zip(one, found[0], strict=True)]
    assert len(equal) == 10 and sum(equal) >= 8, equal


# Training


class Block(nn.Module):
    """Norm, product, activation, product, and what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), Block(64), Block(64), nn.Linear(64, 4))


STEPS, BATCH = 20, 8


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(BATCH, 16, generator=generator) for _ in range(STEPS)]
    return [(x, torch.stack([x[:, :4].sum(1), x[:, 4:8].prod(1), x[:, 8], -x[:, 9]], 1)) for x in inputs]


def train(model: nn.Module, mine: Callable[[torch.Tensor], torch.Tensor], **options: Any) -> list[float]:
    """The losses of the steps, over the batches of all ranks; `mine` takes this rank's rows of one."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    losses = []
    for x, y in batches():
        optimiser.zero_grad()
        loss = F.mse_loss(model(mine(x).to("spyre")), mine(y).to("spyre"))
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def my_rows(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def as_ddp() -> nn.Module:
    return nn.parallel.DistributedDataParallel(small_model().to("spyre"))


def as_fsdp() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = small_model().to("spyre")
    for part in model:
        fully_shard(part)
    return fully_shard(model)


def as_hybrid_fsdp() -> nn.Module:
    """Copies along the first dim of a mesh, shards along the second."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("spyre", (2, 2), mesh_dim_names=("copies", "shards"))
    model = small_model().to("spyre")
    for part in model:
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def as_compiled_ddp() -> nn.Module:
    return torch.compile(as_ddp())


def as_compiled_fsdp() -> nn.Module:
    model = as_fsdp()
    for part in model:
        part.compile()
    return model


def losses_of(make: Callable[[], nn.Module]) -> tuple[list[float], list[float]]:
    """On one card, and the mean over the ranks."""
    alone = train(small_model().to("spyre"), lambda x: x)
    mine = torch.tensor(train(make(), my_rows))
    dist.all_reduce(mine)
    return alone, (mine / dist.get_world_size()).tolist()


@pytest.mark.parametrize(
    ("make", "size"),
    [(as_ddp, 2), (as_fsdp, 2), (as_hybrid_fsdp, 4), (as_compiled_ddp, 2), (as_compiled_fsdp, 2)],
)
def test_training_follows_one_card(ranks: Ranks, make: Callable[[], nn.Module], size: int) -> None:
    for alone, together in ranks.run(size, losses_of, make):
        assert alone[-1] < alone[0]
        for a, b in zip(alone, together, strict=True):
            assert abs(a - b) <= 2e-3, (alone, together)


def split_model(plan: str) -> nn.Module:
    """By torch.distributed.tensor.parallel: products over all ranks, norms over rows or over all."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    model = small_model().to("spyre")
    mesh = init_device_mesh("spyre", (dist.get_world_size(),))
    for block in (model[1], model[2]):
        styles: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if plan == "sequence":
            styles = {
                "norm": SequenceParallel(sequence_dim=0),
                "up": ColwiseParallel(input_layouts=Shard(0)),
                "down": RowwiseParallel(output_layouts=Shard(0)),
            }
        parallelize_module(block, mesh, styles)
    return model


class RowsOfAll(nn.Module):
    """The inner blocks on this rank's rows, the rest on all: what sequence parallelism does to the rows of a text."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mesh = self.model[1].up.weight.device_mesh
        hidden = DTensor.from_local(self.model[0](x), mesh, [Replicate()]).redistribute(placements=[Shard(0)])
        rows = hidden.to_local()
        for block in (self.model[1], self.model[2]):
            rows = block(rows)
        whole = DTensor.from_local(rows, mesh, [Shard(0)]).redistribute(placements=[Replicate()])
        return self.model[3](whole.to_local(grad_placements=[Replicate()]))


def tensor_parallel_losses(plan: str) -> tuple[list[float], list[float]]:
    alone = train(small_model().to("spyre"), lambda x: x)
    model = split_model(plan)
    # PyTorch's foreach forms take no mixture of DTensors and plain tensors.
    return alone, train(RowsOfAll(model) if plan == "sequence" else model, lambda x: x, foreach=False)


@pytest.mark.parametrize("plan", ["columns and rows", "sequence"])
def test_tensor_parallel_training_follows_one_card(ranks: Ranks, plan: str) -> None:
    for alone, together in ranks.run(2, tensor_parallel_losses, plan):
        for a, b in zip(alone, together, strict=True):
            assert abs(a - b) <= 2e-3, (alone, together)


def layouts_of_parts(plan: str) -> list[bool]:
    from torch_spyre.device.modules import weight_layout

    model = split_model(plan)
    parts = [layer.weight.to_local() for block in (model[1], model[2]) for layer in (block.up, block.down)]
    return [part.device_tensor_layout() == weight_layout(part.shape, part.dtype) for part in parts]


@pytest.mark.parametrize("plan", ["columns and rows", "sequence"])
def test_parts_of_parallelized_modules_lie_as_matmul_reads_them(ranks: Ranks, plan: str) -> None:
    for found in ranks.run(2, layouts_of_parts, plan):
        assert found == [True] * 4


def tied_parts() -> tuple[bool, bool]:
    """A part that two layers share stays one tensor when the second one gets it."""
    mesh = init_device_mesh("spyre", (dist.get_world_size(),))
    table = nn.Embedding(64, 128, device="spyre")
    table.weight = nn.Parameter(distribute_tensor(table.weight.detach(), mesh, [Shard(0)]))
    head = nn.Linear(128, 64, bias=False, device="spyre")
    before = table.weight.full_tensor().cpu()
    head.weight = table.weight
    return head.weight is table.weight, torch.equal(table.weight.full_tensor().cpu(), before)


def test_tied_parts_stay_tied(ranks: Ranks) -> None:
    assert ranks.run(2, tied_parts) == [(True, True)] * 2


def split_by_transformers() -> tuple[float, list[int], list[int]]:
    """As `whole_and_share`, with transformers' own tensor parallelism: DTensors, and calls that sum in place."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    from torch_spyre.models.blocks import compile_blocks

    ids = torch.arange(5, 25)[None]
    whole, split = llama(**TINY).to("spyre"), llama(**TINY).to("spyre")
    styles = [pair for like, style in split.tp_plan.items() for pair in ((f"{like}.weight", style), (like, style))]
    names = [name for name, _ in (*split.named_modules(), *split.named_parameters())]
    plan = {name: style for like, style in styles for name in names if fnmatch(name, like)}
    apply_tensor_parallelism(split, init_device_mesh("spyre", (dist.get_world_size(),)), plan)
    split.tie_weights()
    with torch.no_grad():
        near = cosine(split(ids.to("spyre")).logits, whole(ids.to("spyre")).logits)
        length = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(ids)}
        texts = [compile_blocks(m, fullgraph=True).generate(ids, **length)[0].tolist() for m in (whole, split)]
    return near, *texts


def test_a_model_that_transformers_splits(ranks: Ranks) -> None:
    for near, one, all_ranks in ranks.run(2, split_by_transformers):
        assert near >= 0.9999
        assert one == all_ranks


def split_causal_attention() -> bool:
    mesh = init_device_mesh("spyre", (dist.get_world_size(),))
    torch.manual_seed(0)
    heads = [torch.randn(2, 4, 8, 16, device="spyre") for _ in range(3)]
    parts = [distribute_tensor(x, mesh, [Shard(1)]) for x in heads]
    found = F.scaled_dot_product_attention(*parts, is_causal=True).full_tensor()
    return torch.allclose(found.cpu(), F.scaled_dot_product_attention(*heads, is_causal=True).cpu(), rtol=1e-5)


def test_causal_attention_of_split_heads(ranks: Ranks) -> None:
    """The mask is made in the steps of the op: it must be of the kind that the scores are."""
    assert all(ranks.run(2, split_causal_attention))


# DTensor on meshes of one and two dims


def mesh_results() -> dict[str, bool]:
    whole = torch.arange(12 * 20, dtype=torch.float32).reshape(12, 20)
    flat = init_device_mesh("spyre", (4,))
    square = init_device_mesh("spyre", (2, 2), mesh_dim_names=("rows", "columns"))
    on_card = whole.to("spyre")
    both = distribute_tensor(on_card, square, [Shard(0), Shard(1)])
    uneven = distribute_tensor(on_card[:, :7].contiguous(), flat, [Shard(1)])
    rank = dist.get_rank()
    part = whole[6 * (rank // 2) :][:6, 10 * (rank % 2) :][:, :10]
    partial = DTensor.from_local(torch.ones(3, 5, device="spyre") * (rank + 1), flat, [Partial()])
    product = both @ distribute_tensor(on_card.t().contiguous(), square, [Replicate(), Shard(0)])
    return {
        "parts": torch.equal(both.to_local().cpu(), part),
        "whole again": torch.equal(both.full_tensor().cpu(), whole),
        "other dims": torch.equal(both.redistribute(placements=[Shard(1), Shard(0)]).full_tensor().cpu(), whole),
        "uneven": torch.equal(uneven.full_tensor().cpu(), whole[:, :7]),
        "uneven rows": torch.equal(uneven.redistribute(placements=[Shard(0)]).full_tensor().cpu(), whole[:, :7]),
        "sum": bool((partial.redistribute(placements=[Replicate()]).to_local().cpu() == 10).all()),
        "product": torch.allclose(product.full_tensor().cpu(), whole @ whole.t(), rtol=1e-6),
        "row of the mesh": square["rows"].size() == 2 and square["columns"].get_local_rank() == rank % 2,
    }


def test_meshes(ranks: Ranks) -> None:
    for found in ranks.run(4, mesh_results):
        assert all(found.values()), found


# Pipelines, checkpoints


def pipelined() -> tuple[Any, Any]:
    """Two stages, a batch in four parts: are gradients those of one card, and how far off is the loss?"""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, device = dist.get_rank(), torch.device("spyre", torch.spyre.current_device())
    x, y = batches()[0]
    whole = small_model().to("spyre")
    loss = F.mse_loss(whole(x.to("spyre")), y.to("spyre"))
    loss.backward()
    stage_model = small_model()[2 * rank : 2 * rank + 2].to("spyre")
    stage = PipelineStage(stage_model, rank, 2, device)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=F.mse_loss)
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(x.to("spyre"))
    else:
        schedule.step(target=y.to("spyre"), losses=losses)
    mine = list(whole[2 * rank : 2 * rank + 2].parameters())
    near = all(torch.allclose(p.grad.cpu(), q.grad.cpu(), rtol=1e-3, atol=1e-5)
               for p, q in zip(stage_model.parameters(), mine, strict=True))  # fmt: skip
    return near, abs(float(torch.stack(losses).mean()) - float(loss)) if losses else 0.0


def test_two_stages(ranks: Ranks) -> None:
    for near, difference in ranks.run(2, pipelined):
        assert near
        assert difference <= 1e-5


def save_shards(folder: str) -> list[float]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = as_fsdp()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = batches()[0]
    F.mse_loss(model(my_rows(x).to("spyre")), my_rows(y).to("spyre")).backward()
    optimiser.step()
    parameters, state = get_state_dict(model, optimiser)
    dcp.save({"model": parameters, "optimiser": state}, checkpoint_id=folder)
    return [float(p.full_tensor().cpu().double().sum()) for p in model.parameters()]


def load_shards(folder: str) -> tuple[list[float], list[float]]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = as_fsdp()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    parameters, state = get_state_dict(model, optimiser)
    dcp.load({"model": parameters, "optimiser": state}, checkpoint_id=folder)
    set_state_dict(model, optimiser, model_state_dict=parameters, optim_state_dict=state)
    moments = [
        float(optimiser.state[p]["exp_avg"].full_tensor().cpu().double().abs().sum()) for p in model.parameters()
    ]
    return [float(p.full_tensor().cpu().double().sum()) for p in model.parameters()], moments


def test_saved_on_four_loaded_on_two(ranks: Ranks, tmp_path: Path) -> None:
    saved = ranks.run(4, save_shards, str(tmp_path))
    for loaded, moments in ranks.run(2, load_shards, str(tmp_path)):
        assert loaded == saved[0]
        assert any(moments)
