# SPDX-License-Identifier: Apache-2.0
"""What happens to instructions around selection: folding, loops, phases, streaming, scratch memory."""
