# SPDX-License-Identifier: Apache-2.0
"""KTIR, the kernel-tile IR, as a language.

Enters: a planned `Kernel` (`emit`), or KTIR text by anybody (`text`). Leaves: a verified xDSL module for `backend/`.
Holds: what leaves has passed the verifiers of `dialect` and the rules of `legality`.
"""
