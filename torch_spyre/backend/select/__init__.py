# SPDX-License-Identifier: Apache-2.0
"""The selector, and one file of handlers for each family of KTIR operations."""
