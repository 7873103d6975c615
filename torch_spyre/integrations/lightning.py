# SPDX-License-Identifier: Apache-2.0
"""Lightning on the card: ``Trainer(accelerator="spyre")`` and "auto", and the same for `Fabric`.

Lightning has a registry of accelerators, which takes the class below. Missing hooks: an entry point for that registry;
and the accelerator's own word on what "auto" means, on the strategy for one device and on the device of autocast, which
are lists of names in its connectors.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from torch_spyre import knobs
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import InvalidArgument, UnsupportedOp
from torch_spyre.integrations import choice


def register(module: ModuleType) -> None:
    """`lightning.pytorch.accelerators` or `lightning.fabric.accelerators`, or the same in their own packages."""
    registry = getattr(module, "AcceleratorRegistry", None) or module.ACCELERATOR_REGISTRY
    accelerator = accelerator_class(module.Accelerator)
    module.SpyreAccelerator = accelerator  # type: ignore[attr-defined]
    if DEVICE_NAME not in registry:
        registry.register(DEVICE_NAME, accelerator, description="Spyre cards")


def accelerator_class(base: Any) -> Any:
    """The accelerator on the base class of the Trainer or of Fabric."""

    class SpyreAccelerator(base):
        """One card for a process."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != DEVICE_NAME:
                raise InvalidArgument(f"SpyreAccelerator was given {device}; it needs a {DEVICE_NAME} device")
            torch.accelerator.set_device_index(device.index or 0)

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return dict(torch.accelerator.memory_stats(device))

        def teardown(self) -> None:
            torch.accelerator.empty_cache()

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            return parse_devices(devices)

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device(DEVICE_NAME, index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return 1  # there are no collectives that would join several

        @staticmethod
        def is_available() -> bool:
            return choice.card() is not None

        @staticmethod
        def name() -> str:
            return DEVICE_NAME

    return SpyreAccelerator


def parse_devices(devices: Any) -> list[int]:
    """Lightning's ways to say which: a count ("auto" or -1 for all), a list of numbers, or either of them as text,
    where a comma makes a list."""
    count = torch.accelerator.device_count()
    wanted = devices
    if isinstance(wanted, str) and wanted != "auto":
        try:
            numbers = [int(part) for part in wanted.split(",") if part.strip()]
        except ValueError:
            raise InvalidArgument(f"devices={devices!r} is neither a count nor a list like '0,'") from None
        wanted = numbers if "," in wanted else numbers[0]
    if isinstance(wanted, int) and wanted >= 0:
        wanted = range(wanted)
    chosen = [0] if isinstance(wanted, (str, int)) or wanted is None else [*wanted]
    if len(chosen) != 1:
        raise UnsupportedOp(f"devices={devices!r} are {len(chosen)} cards; a process trains on one: devices=1")
    if not 0 <= chosen[0] < count:
        raise InvalidArgument(f"devices={devices!r}: there are cards 0 to {count - 1}")
    return chosen


def choose_in_trainer(module: ModuleType) -> None:
    _change_connector(module._AcceleratorConnector, module)


def choose_in_fabric(module: ModuleType) -> None:
    _change_connector(module._Connector, module)


def _refuse_several_processes() -> None:
    """Lightning's strategies for several processes do not know the card; without one each process would train a model
    of its own, and nobody would notice."""
    processes = knobs.get("started_processes")
    if processes > 1:
        raise UnsupportedOp(
            f"Lightning was started with WORLD_SIZE={processes}, but trains on one spyre card only: start one process, "
            "or use accelerate, Trainer or torch.nn.parallel.DistributedDataParallel for several"
        )


def _has_plugin(connector: Any) -> bool:
    names = ("_precision_plugin_flag", "_precision_instance")
    return any(getattr(connector, name, None) is not None for name in names)


def _change_connector(connector: Any, module: ModuleType) -> None:
    """ "auto" takes the card; it is run on by one device; autocast is the card's."""

    def auto(original: Any) -> Any:
        def _choose_auto_accelerator(*args: Any) -> str:
            found: str = original(*args)
            return DEVICE_NAME if found == "cpu" and choice.card() is not None else found

        return _choose_auto_accelerator

    def strategy(original: Any) -> Any:
        def _choose_strategy(self: Any) -> Any:
            if self.accelerator.name() != DEVICE_NAME:
                return original(self)
            _refuse_several_processes()
            return module.SingleDeviceStrategy(device=self._parallel_devices[0])

        return _choose_strategy

    def precision(original: Any) -> Any:
        def _check_and_init_precision(self: Any) -> Any:
            asked = getattr(self, "_precision_flag", None) or getattr(self, "_precision_input", None)
            mixed = asked in ("16-mixed", "bf16-mixed")
            if not mixed or self.accelerator.name() != DEVICE_NAME or _has_plugin(self):
                return original(self)
            return module.MixedPrecision(asked, DEVICE_NAME)

        return _check_and_init_precision

    automatic = vars(connector)["_choose_auto_accelerator"]
    choice.replace_method(connector, "_choose_auto_accelerator", auto)
    if isinstance(automatic, staticmethod):
        connector._choose_auto_accelerator = staticmethod(connector._choose_auto_accelerator)
    choice.replace_method(connector, "_choose_strategy", strategy)
    choice.replace_method(connector, "_check_and_init_precision", precision)
