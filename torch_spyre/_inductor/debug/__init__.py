# SPDX-License-Identifier: Apache-2.0
"""What a compiled kernel became, for people: records, dumps, launchers that check, the way back to the source line."""
