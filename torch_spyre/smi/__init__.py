# SPDX-License-Identifier: Apache-2.0
"""``spyre-smi``: what the cards of this user's processes are doing.

A software card belongs to its process, so each process that opens one writes a small status file (`publish`), and the
command reads the files of all of them (`status`, `cli`). Neither needs the other to run.
"""
