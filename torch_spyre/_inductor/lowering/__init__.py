# SPDX-License-Identifier: Apache-2.0
"""Lowerings: what an op of a traced graph becomes in the loop IR of Inductor, where its rule does not fit the card."""
