# SPDX-License-Identifier: Apache-2.0
"""vLLM on the card: a platform plugin for an unmodified vLLM (docs/serving.md).

vLLM finds it by the entry point `vllm.platform_plugins`. The scheduler, samplers and servers are vLLM's; weights, KV
cache and the computation of the model are on the card.

    platform.py     what the card is to vLLM, and what it refuses
    worker.py       a process with one card: memory, warm-up
    runner.py       one step: the batch in tables, one graph, its launches replayed
    attention/      the backend that vLLM's attention layers get, the tables of a batch
    steps/          buckets, compiled blocks, recorded launches
    vllm_api.py     every name of vLLM that may move from one version to the next
"""


def platform() -> str | None:
    """The entry point: the dotted name of the platform class."""
    return "spyre_inference.platform.SpyrePlatform"
