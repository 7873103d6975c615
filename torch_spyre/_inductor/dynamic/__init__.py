# SPDX-License-Identifier: Apache-2.0
"""Kernels whose sizes are symbols, one for all sizes."""
