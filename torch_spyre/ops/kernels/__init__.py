# SPDX-License-Identifier: Apache-2.0
"""Kernels registered with the dispatcher of PyTorch: ops that keep their own name on the card, or that it refuses."""
