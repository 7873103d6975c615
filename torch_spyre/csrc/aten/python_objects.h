// SPDX-License-Identifier: Apache-2.0
// The Python side of `_C`, one function per file.
#pragma once
#include <pybind11/pybind11.h>

#include "device.h"
#include "launch.h"

namespace spyre {

void bind_layout(pybind11::module_& m);
void bind_device(pybind11::module_& m);
void bind_launch(pybind11::module_& m);
void bind_eager(pybind11::module_& m);
void bind_eager_buckets(pybind11::module_& m);
void bind_monitor(pybind11::module_& m);
void bind_recording(pybind11::module_& m);
void bind_distributed(pybind11::module_& m);
void register_structured_ops();

/// For methods without arguments: None in place of the object raises TypeError, where pybind11 alone passes null.
using NotNone = pybind11::pos_only;

/// The index of a device from Python, where -1 is the current one: any other number that is no device raises.
inline c10::DeviceIndex checked(int64_t index) {
  TORCH_CHECK(index >= -1 && index < device_count(), no_such_device(index));
  return resolve_device(static_cast<c10::DeviceIndex>(index));
}

/// ("input", i) | ("output", j) | ("pool", 0) | ("constant", k)
Binding parse_binding(const pybind11::tuple& binding);

}  // namespace spyre
