# SPDX-License-Identifier: Apache-2.0
"""The back end: a KTIR module becomes a program for the card.

Enters: a verified KTIR module with one function (`compile.compile_module`), from `ktir.emit` or from anybody.
Leaves: a `CompiledProgram`: the binary of docs/program-format.md, what each launch argument must provide, and the
instructions for `explain`.
Holds: a program is position independent, computes what KTIR's values say with every value rounded to its element type,
and touches LX above the planned tensors only for temporaries. What the card cannot do is refused by name.

The passes, in the order in which data meets them:

| file | what it does |
|---|---|
| `scalars` on `stream` | normalise: index values become affine forms over registers, shared and hoisted |
| `access`, `boxes` | views and access tiles become addresses |
| `digits`, `address` | addresses become operand maps: linear, stick, or (copies) layout |
| `fold` | loads and stores disappear into the instructions that use or make the value |
| `selector` with `memory`, `elementwise`, `contractions`, `control` | one tile instruction per operation |
| `phases` | exchanges between cores become partials in scratch, barriers and ring reads |
| `scratch` | temporaries get LX addresses by liveness |
| `assembler`, `decoder` | bytes, and back |

A new operation is a row or a function in one of the handler tables; nothing else has to know it.
Importing this package does not import xDSL; `compile` does.
"""
