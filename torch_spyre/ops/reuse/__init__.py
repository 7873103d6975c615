# SPDX-License-Identifier: Apache-2.0
"""Lowered calls and programs that serve more than one eager call."""
