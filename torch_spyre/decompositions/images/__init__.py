# SPDX-License-Identifier: Apache-2.0
"""Ops over the places of an image: windows that slide over it, and other sizes of it.

Enters, leaves, holds: as in the package above.
"""
