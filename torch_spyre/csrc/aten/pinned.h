// SPDX-License-Identifier: Apache-2.0
// Pinned host memory. A software card reads any host memory, so pinned memory is ordinary memory that is known: a
// transfer from or to it may outlive the call, because the block stays alive until the transfer is done.
#pragma once
#include <c10/core/Allocator.h>

#include <memory>

namespace spyre {

c10::Allocator* pinned_allocator();
/// The pinned block that contains the address, null if there is none. Whoever holds it keeps the memory.
std::shared_ptr<const void> pinned_block(const void* address);

}  // namespace spyre
