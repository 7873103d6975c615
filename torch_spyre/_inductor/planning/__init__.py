# SPDX-License-Identifier: Apache-2.0
"""The planner, and what several of its passes ask: prices, candidates, who holds what."""
