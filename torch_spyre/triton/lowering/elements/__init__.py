# SPDX-License-Identifier: Apache-2.0
"""Operations on the elements of tiles: functions, reductions and products, scans and sorting, moves."""
