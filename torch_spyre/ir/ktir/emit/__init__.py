# SPDX-License-Identifier: Apache-2.0
"""Prints a planned `Kernel` as a KTIR function."""
