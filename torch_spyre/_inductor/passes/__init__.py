# SPDX-License-Identifier: Apache-2.0
"""Planning passes over a TileGraph, in the order of `planner.PASSES`.

Each module has ``run(graph) -> graph`` (it fills the planned fields in place) and ``explain(graph) -> list[str]``.
"""
