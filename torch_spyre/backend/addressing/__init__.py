# SPDX-License-Identifier: Apache-2.0
"""Which bytes a tile touches: views, access tiles and subscripts become operands of instructions."""
