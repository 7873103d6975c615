# SPDX-License-Identifier: Apache-2.0
"""Passes over a TileGraph, in the order of `planner.GRAPH_PASSES` and `planner.PASSES`.

Each module has ``run(graph) -> graph``, which changes the graph in place; those that plan have ``explain(graph) ->
list[str]`` too. What a plan may choose from stands in ``graph.options``; no pass reads a knob.
"""
