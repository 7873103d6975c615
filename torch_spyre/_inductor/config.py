# SPDX-License-Identifier: Apache-2.0
"""The compiler's values as a torch config module: ``config.patch(...)`` works, and they enter Inductor's cache key.

Meaning, legal values and defaults are in `torch_spyre/knobs.py`; the environment is read once, when this is imported.
"""

import sys

from torch.utils._config_module import install_config_module

from torch_spyre import knobs
from torch_spyre.runtime import cache as _cache

plan: str = knobs.from_env("plan")
errata: str = knobs.from_env("errata")
sencores: int = knobs.from_env("sencores")
cut_k: bool = knobs.from_env("cut_k")
lx_planning: bool = knobs.from_env("lx_planning")
dxp_lx_frac_avail: float = knobs.from_env("dxp_lx_frac_avail")
dynamic_buckets: bool = knobs.from_env("dynamic_buckets")
max_buckets: int = knobs.from_env("max_buckets")
ignore_work_division_hints: bool = knobs.from_env("ignore_work_division_hints")

# Published values without effect: no cache key holds them.
# @compile_ignored
co_optimizing_lx_planning: bool = knobs.from_env("co_optimizing_lx_planning")
# @compile_ignored
hbm_planning: bool = knobs.from_env("hbm_planning")
# @compile_ignored
enable_fusion: bool = knobs.from_env("enable_fusion")
# @compile_ignored
chunk_large_tensors: bool = knobs.from_env("chunk_large_tensors")
# @compile_ignored
global_stick_optimizer: bool = knobs.from_env("global_stick_optimizer")
# @compile_ignored
allow_all_ops_in_lx_planning: bool = knobs.from_env("allow_all_ops_in_lx_planning")
# @compile_ignored
lx_boundary_clones: bool = knobs.from_env("lx_boundary_clones")
# @compile_ignored
min_default_granularity: int = knobs.from_env("min_default_granularity")
# @compile_ignored
core_id_k_fast_emission: bool = knobs.from_env("core_id_k_fast_emission")
# @compile_ignored
bundle_symbolic_args: bool = knobs.from_env("bundle_symbolic_args")
# @compile_ignored
unroll_loops: bool = knobs.from_env("unroll_loops")
# @compile_ignored
layout_solver: str = knobs.from_env("layout_solver")
_cache_config_ignore_prefix: list[str] = [k.name for k in knobs.TABLE if k.group == "compiler" and not k.plans]

# Hints of the function that is being compiled: Inductor's cache does not see the annotations that carry them.
_active_hints: str = ""

# Inductor's own cache holds our TileGraphs: they must not outlive the compiler that built them.
_compiler_fingerprint: str = _cache.compiler_fingerprint()

install_config_module(sys.modules[__name__])
knobs.attach(sys.modules[__name__])
