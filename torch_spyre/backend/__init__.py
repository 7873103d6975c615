# SPDX-License-Identifier: Apache-2.0
"""The back end: a KTIR module becomes a program for the card.

Enters: a verified KTIR module with one function (`compile.compile_module`), from `ktir.emit` or from anybody.
Leaves: a `CompiledProgram`: the binary of docs/program-format.md, what each launch argument must provide, and the
instructions for `explain`.
Holds: a program is position independent, computes what KTIR's values say with every value rounded to its element type,
and touches LX above the planned tensors only for temporaries. What the card cannot do is refused by name.

The passes and the way of one value through them: docs/backend.md. In short: `scalars` normalises indices, `views` and
`access` turn tiles into addresses, `selector` with its handler tables gives tile instructions with loads and stores
folded in, `absorb`, `streaming` and `scratch` finish the list, `assembler` writes it.

A new operation is a row or a function in one of the handler tables; nothing else has to know it.
Importing this package does not import xDSL; `compile` does.
"""
