# SPDX-License-Identifier: Apache-2.0
"""The Python side of the SDK (`sdk/`), which stands in for the closed parts under the public torch-spyre.

Enters: a SuperDSC bundle that its front end wrote. Leaves: the `spyreCodeDir` that its runtime, over `libflex`, loads
and launches. The command `dxp_standalone` is C++; `server` compiles for it.
"""
