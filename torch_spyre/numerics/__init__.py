# SPDX-License-Identifier: Apache-2.0
"""How far a model on the card is from the same model on the CPU in fp32, and where the distance comes from.

Enters: a Hugging Face model. Leaves: errors of its logits (`models`), of each layer (`layers`), the op in which a NaN
or an overflow begins (`origins`); `spyre-numerics` prints them, ``python -m torch_spyre.numerics.table`` writes
docs/model-table.md. Errors are compared with those that rounding to the card's format causes by itself (`format`).
"""
