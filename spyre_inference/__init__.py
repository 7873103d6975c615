# SPDX-License-Identifier: Apache-2.0
"""vLLM on the card: a platform plugin for an unmodified vLLM (docs/serving.md).

vLLM finds it by the entry point `vllm.platform_plugins`. The scheduler, samplers and servers are vLLM's; weights, KV
cache and the computation of the model are on the card.

    platform.py     what the card is to vLLM; refusals.py: what it refuses
    worker.py       a process with one card: memory, warm-up, sleep; cards.py: several of them
    runner.py       vLLM's runner of models: batches in, tokens out
    card_model.py   a model on the card: its weights, pages and steps
    attention/      the backend that vLLM's attention layers get, the tables of a batch
    steps/          buckets, compiled blocks, recorded launches
    layers.py, experts.py, adapters.py, quantised.py    layers of vLLM in the card's form
    offload.py, metrics.py    pages on the host; what cards do, for Prometheus
    vllm_api.py     every name of vLLM that may move from one version to the next
"""


def platform() -> str | None:
    """The entry point: the dotted name of the platform class."""
    return "spyre_inference.platform.SpyrePlatform"
