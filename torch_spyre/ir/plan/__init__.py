# SPDX-License-Identifier: Apache-2.0
"""The plan: a `tileops.Kernel`, which both KTIR and SuperDSC can express.

Enters: the decisions of `_inductor/`, or a SuperDSC bundle. Leaves: the same object for the printers.
Holds: every access of every op has device coordinates, a core split and a place in memory or LX.
"""
