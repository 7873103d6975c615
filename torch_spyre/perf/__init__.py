# SPDX-License-Identifier: Apache-2.0
"""The card's clock: a device description and the static timeline of a program.

Enters: a program (instructions of the back end). Leaves: nanoseconds, traffic and the bottleneck of each phase.
Holds: no constants of the card; all come from a description file such as `spyre.toml`. `walk` runs the scalar part of
a program, `access` and `survey` say what it asks of the card, `memory`, `matmul` and `timeline` price that, `validate`
and `calibrate` compare the price with measurements. `fabric` prices what cards send one another.
docs/clock.md tells how and how well.
"""
