// SPDX-License-Identifier: Apache-2.0
// What watchers of a process see: memory history and counters.
#pragma once
#include <cstdint>

namespace spyre {

/// Tells the Python function of `_set_memory_hook`, if there is one, about
/// `change` bytes at `address`: positive for an allocation, negative for a
/// free. Takes the GIL only while a function is set.
void notify_memory_hook(int device, uint64_t address, int64_t change);

}  // namespace spyre
