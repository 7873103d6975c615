# SPDX-License-Identifier: Apache-2.0
"""Attention of vLLM's layers on the card."""
