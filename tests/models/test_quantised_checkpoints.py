# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_quantised_checkpoints.py

Checkpoints that hold 8-bit codes, written here in the usual layouts: the codes reach the card unchanged, the products
are those of float64 with the same codes, and nothing runs on the host.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from torch_spyre.errors import InvalidArgument, UnsupportedOp
from torch_spyre.models.blocks import compile_blocks
from torch_spyre.models.checkpoint import load
from torch_spyre.models.quantised_linear import EightBitLinear
from torch_spyre.ops import fallbacks

E4M3 = torch.float8_e4m3fn
SIZES = {"vocab_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "hidden_size": 256}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
Writer = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]  # weight -> tensors of the file, what they stand for


def _rows(codes: torch.dtype, most: float, whole: bool = False) -> Writer:
    def write(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        scale = (weight.abs().max().reshape(1) if whole else weight.abs().amax(1, keepdim=True)) / most
        steps = weight / scale
        found = (steps.round() if codes == torch.int8 else steps).clamp(-most, most).to(codes)
        return {"weight": found, "weight_scale": scale}, found.double() * scale.double()

    return write


def _packed(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    tensors, whole = _rows(torch.int8, 127)(weight)
    codes = tensors.pop("weight").to(torch.int64) + 128
    words = sum(codes[:, i::4] << (8 * i) for i in range(4))
    signed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return {"weight_packed": signed, "weight_shape": torch.tensor(weight.shape), **tensors}, whole


def _blocks(name: str) -> Writer:
    def write(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts = weight.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
        scale = parts.abs().amax((1, 3)) / 448
        codes = (parts / scale[:, None, :, None]).clamp(-448, 448).to(E4M3)
        whole = (codes.double() * scale.double()[:, None, :, None]).reshape(weight.shape)
        return {"weight": codes.reshape(weight.shape), name: scale}, whole

    return write


def _static(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    tensors, whole = _rows(E4M3, 448, whole=True)(weight)
    return {**tensors, "input_scale": torch.tensor([0.0125])}, whole


def _group(kind: str, strategy: str, inputs: dict[str, Any] | None, layout: str, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False, **more}
    both = None if inputs is None else {"num_bits": 8, "type": kind, "symmetric": True, **inputs}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": both}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


BY_TOKEN: dict[str, Any] = {"strategy": "token", "dynamic": True}
FINE_GRAINED = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}
LAYOUTS: dict[str, tuple[Writer, dict[str, Any]]] = {
    "float8 by row": (_rows(E4M3, 448), _group("float", "channel", BY_TOKEN, "float-quantized")),
    "float8 by tensor": (_static, _group("float", "tensor", {"strategy": "tensor"}, "float-quantized")),
    "float8 weights": (_rows(E4M3, 448), _group("float", "channel", None, "naive-quantized")),
    "float8 blocks": (
        _blocks("weight_scale"),
        _group("float", "block", {**BY_TOKEN, "strategy": "group"}, "float-quantized", block_structure=[128, 128]),
    ),
    "int8 by row": (_rows(torch.int8, 127), _group("int", "channel", BY_TOKEN, "int-quantized")),
    "int8 packed": (_packed, _group("int", "channel", None, "pack-quantized")),
    "fine-grained": (_blocks("weight_scale_inv"), FINE_GRAINED),
}


def written(folder: Path, layout: str) -> dict[str, Tensor]:
    """Writes a checkpoint; returns what its weights stand for, and those that have no codes."""
    writer, described = LAYOUTS[layout]
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **HEADS})).half().eval()
    model.save_pretrained(folder)
    tensors: dict[str, Tensor] = {}
    meaning: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if "proj" in name:
            made, meaning[name] = writer(tensor.float() * 3)
            owner = name.removesuffix("weight")
            tensors |= {f"{owner}{attribute}": value.contiguous() for attribute, value in made.items()}
        else:
            tensors[name] = meaning[name] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": described}))
    return meaning


def codes_of(x: Tensor, layer: EightBitLinear) -> np.ndarray[Any, Any]:
    """The numbers that the codes of an input stand for, as the layouts define them."""
    if not layer.activations:
        return oracle.to64(x)
    most = 127 if layer.weight.dtype == torch.int8 else 448
    parts = x.float().unflatten(1, (-1, 128 if layer.scale.dim() == 2 else x.shape[1]))
    given = layer.input_scale
    scale = parts.abs().amax(-1, keepdim=True) / most if given is None else given.cpu().reshape(1, 1, 1)
    steps = parts / scale
    codes = (steps.round() if most == 127 else steps).clamp(-most, most).to(layer.weight.dtype)
    return oracle.to64((codes.double() * scale.double()).reshape(x.shape))


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_layers(tmp_path: Path, layout: str) -> None:
    meaning = written(tmp_path, layout)
    model = load(tmp_path)
    layers = {name: m for name, m in model.named_modules() if isinstance(m, EightBitLinear)}
    assert len(layers) == 14 and type(model.lm_head) is torch.nn.Linear
    for name in ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"):
        layer, whole = layers[name], meaning[f"{name}.weight"]
        x = torch.from_numpy(oracle.dl16(torch.randn(5, layer.in_features).half())).half()
        left, right = codes_of(x, layer), oracle.to64(whole).T
        error = oracle.matmul_error(left, right, splits=12) + oracle.elementwise_error(left @ right)
        if not layer.activations:  # the product is stored before it is scaled
            error = error + 2.0**-9 * np.abs(left @ right)
        with fallbacks.disabled():
            oracle.assert_close_dl16(layer(x.to("spyre")).cpu(), left @ right, error)


@pytest.mark.parametrize("layout", ["float8 by row", "int8 by row", "fine-grained"])
@torch.no_grad()
def test_models(tmp_path: Path, layout: str) -> None:
    """Compiled, with a cache: near the same model in float32 with the weights that the codes stand for. Inputs have
    codes too, of three bits in fp8."""
    meaning = written(tmp_path, layout)
    config = transformers.LlamaConfig(**{**SIZES, **HEADS})
    exact = transformers.LlamaForCausalLM(config).eval()
    exact.load_state_dict({name: tensor.float() for name, tensor in meaning.items()})
    ids = torch.randint(4, 200, (1, 12), generator=torch.Generator().manual_seed(1))
    model = compile_blocks(load(tmp_path))
    with fallbacks.disabled():
        prompt = model(ids[:, :-1].to("spyre"), use_cache=True)
        step = model(ids[:, -1:].to("spyre"), past_key_values=prompt.past_key_values, use_cache=True)
    found = torch.cat([prompt.logits.cpu(), step.logits.cpu()], 1).float()
    assert torch.cosine_similarity(found, exact(ids).logits, -1).min() > 0.99


def refused(folder: Path, match: str, **changes: Any) -> None:
    file = folder / "config.json"
    described = json.loads(file.read_text())
    file.write_text(json.dumps({**described, "quantization_config": changes}))
    with pytest.raises(UnsupportedOp, match=match):
        load(folder)
    file.write_text(json.dumps(described))


def test_what_the_card_does_not_take_is_named(tmp_path: Path) -> None:
    written(tmp_path, "int8 packed")
    group = LAYOUTS["int8 packed"][1]
    four = json.loads(json.dumps(group))
    four["config_groups"]["group_0"]["weights"] |= {"num_bits": 4, "strategy": "group", "group_size": 128}
    refused(tmp_path, "4-bit int weights of strategy 'group', format 'pack-quantized'.*weights='fp8'", **four)
    skewed = json.loads(json.dumps(group))
    skewed["config_groups"]["group_0"]["weights"]["symmetric"] = False
    refused(tmp_path, "zero points", **skewed)
    refused(tmp_path, "quantised by 'gptq'", quant_method="gptq")
    refused(tmp_path, r"blocks of \[64, 64\]", quant_method="fp8", weight_block_size=[64, 64])
    refused(tmp_path, "fp8 scales as 'ue8m0'", **{**FINE_GRAINED, "scale_fmt": "ue8m0"})


def test_scales_that_do_not_fit(tmp_path: Path) -> None:
    written(tmp_path, "float8 by row")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.up_proj.weight_scale"
    save_file({**tensors, name: tensors[name][:7].clone()}, file)
    with pytest.raises(InvalidArgument, match=r"up_proj.weight_scale: scales of size \(7, 1\) where \(384,\)"):
        load(tmp_path)
    del tensors[name]
    save_file(tensors, file)
    with pytest.raises(InvalidArgument, match=r"no values for \['model.layers.0.mlp.up_proj.scale'\]"):
        load(tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_transformers_keeps_the_codes(tmp_path: Path, layout: str) -> None:
    """`from_pretrained` without further packages: the same codes and scales as `load`."""
    written(tmp_path, layout)
    ours = load(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16).to("spyre")
    expected, found = ours.state_dict(), theirs.state_dict()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name].cpu().float(), value.cpu().float()), name
    layer, reference = theirs.model.layers[0].mlp.up_proj, ours.model.layers[0].mlp.up_proj
    assert layer.activations == reference.activations
    layouts = [m.weight.device_tensor_layout() for m in (layer, reference)]
    assert layouts[0] == layouts[1]
