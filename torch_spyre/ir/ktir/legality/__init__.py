# SPDX-License-Identifier: Apache-2.0
"""Rules that involve several operations of a module, and the integer sets they are stated with."""
