# SPDX-License-Identifier: Apache-2.0
"""A serving laboratory: the scheduler of vLLM, requests and cards, all in virtual time.

Enters: a model, cards, requests with their times of arrival. `scheduler` asks vLLM's own scheduler what each step
computes, `prices` says how long the cards take for it, `simulate` moves the time on. Leaves: when every token of every
request was there. Holds: nothing is computed but times, and the same input gives the same times.
"""
