# SPDX-License-Identifier: Apache-2.0
"""The program format (docs/program-format.md): its codes, its instructions as objects, writer and reader."""
