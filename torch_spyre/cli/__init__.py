# SPDX-License-Identifier: Apache-2.0
"""The command `spyre`: one entrance to all tools.

Enters: a subcommand and its words. Leaves: what the tool's own `main` returns. `commands` is the table of subcommands;
packages above this one add theirs through the entry points of the group "torch_spyre.commands".
"""
