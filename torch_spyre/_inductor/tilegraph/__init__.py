# SPDX-License-Identifier: Apache-2.0
"""The TileGraph: one explicit graph between Inductor's IR and the printers.

Enters: Inductor's realised buffers (`build`). Leaves: a graph of single device operations over named iteration dims
with host-linear access maps, free of layouts; the passes in `_inductor/passes` add layouts, core splits and
placement.
"""
