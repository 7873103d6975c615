# SPDX-License-Identifier: Apache-2.0
"""python examples/embed.py ["a sentence" …]: sentence embeddings on the card, the nearest sentences to each query."""

import sys
import time

from torch_spyre.models.minilm import Embedder

SENTENCES = (
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "The stock market fell sharply today.",
    "Shares lost much of their value this afternoon.",
    "She plays the violin in an orchestra.",
    "He practises the piano every evening.",
    "Water boils at one hundred degrees Celsius.",
    "The recipe needs two cups of flour and an egg.",
    "A new exoplanet was found around a nearby star.",
    "Astronomers discovered a distant world.",
    "The train to Vienna leaves at noon.",
    "Our flight was delayed by three hours.",
)


def main(queries: list[str]) -> int:
    embed = Embedder()
    start = time.perf_counter()
    known = embed(SENTENCES)
    asked = embed(queries)
    print(f"{len(SENTENCES) + len(queries)} sentences in {time.perf_counter() - start:.2f} s\n")
    for query, scores in zip(queries, asked @ known.T, strict=True):
        print(query)
        for score, place in zip(*scores.topk(3), strict=True):
            print(f"  {score:.3f}  {SENTENCES[place]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["A cat takes a nap.", "Financial news", "Travelling by rail", "Planets far away"]))
