# SPDX-License-Identifier: Apache-2.0
"""Every change to objects of PyTorch. No other part of this project makes one; a test sees to that
(tests/compiler/test_patches.py). Packages above PyTorch are the matter of torch_spyre/integrations.

Each function named in `applied` is one change. It names the hook that is missing
upstream, and with that hook it could go. All the rest goes through hooks that PyTorch 2.13 has: the autoload entry
point, the device module and its `Scheduling` and `PythonWrapperCodegen`, `register_backend_for_device`,
`register_interface_for_device`, `register_device_op_overrides`, Dynamo's backend entry point, `torch.compiler.disable`,
torch.library, `copyreg`, the decomposition table, the table of lowerings (entries that look at the device first and
pass other devices on, `_inductor/lowering/guards.py`), the patterns of the joint graph, and the registries of
torch._logging.

How ``torch.compile(backend="spyre")`` and the default backend differ
---------------------------------------------------------------------
They do not, in what they compile: both run Inductor's `compile_fx` with the same tables, and a test compares their
TileGraphs. `backend="spyre"` is the primary entry; the default one is there because scripts written for other devices
name none. Only this differs: `backend="spyre"` merges ``mode=`` and ``options=`` itself, which PyTorch does for its own
backend; and the default backend first imports the registration when it meets a tensor on the card.
"""

import torch  # noqa: F401  (PyTorch loads the device, which needs every module of this package whole)
