# SPDX-License-Identifier: Apache-2.0
"""The card's clock: a device description and the static timeline of a program.

Enters: a program (instructions of the back end). Leaves: nanoseconds, traffic and the bottleneck of each phase.
Holds: no constants of its own; all come from a description file such as `spyre.toml`.
"""
