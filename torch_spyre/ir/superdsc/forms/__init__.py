# SPDX-License-Identifier: Apache-2.0
"""What front ends write in several ways, told in the one way that the rules and the reader know."""
