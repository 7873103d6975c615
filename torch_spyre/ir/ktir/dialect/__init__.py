# SPDX-License-Identifier: Apache-2.0
"""Operations, types and attributes of KTIR: `ktdp`, `spyreop`, and what xDSL lacks of other dialects."""
