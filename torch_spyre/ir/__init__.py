# SPDX-License-Identifier: Apache-2.0
"""The languages of a planned kernel.

`plan` is what the planner decided, as dataclasses. `ktir` prints that as KTIR and reads KTIR of others; `superdsc` does
the same with SuperDSC bundles. Nothing here compiles or runs: that is done by `backend/`, `ktir/` and `sdsc/`.
"""
