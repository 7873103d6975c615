// SPDX-License-Identifier: Apache-2.0
// Errors with names: C++ failures become the classes of torch_spyre/errors.py.
#pragma once
#include <string>

#include "spyre/card.h"

namespace spyre {

/// Raises torch_spyre.errors.<kind>(message) through C++; the caller need not hold the GIL.
[[noreturn]] void raise(const std::string& kind, const std::string& message);

/// The same for an error of the card; OutOfMemory becomes torch.OutOfMemoryError.
[[noreturn]] void raise(const card::Error& error);

/// A Python warning that names the user's line; throws if warnings are errors.
void warn_user(const std::string& message);

/// Calls into the card through this: its errors leave as Python exceptions.
template <typename F>
decltype(auto) on_card(F&& f) {
  try {
    return f();
  } catch (const card::Error& e) {
    raise(e);
  }
}

/// Lets Python collect its dead cycles. True if one of them held memory of a card.
bool free_dead_cycles();

/// Calls into the card that take memory, through this: they are made again if Python's dead cycles held some.
template <typename F>
decltype(auto) with_memory(F&& f) {
  try {
    return f();
  } catch (const card::Error& e) {
    if (e.kind() != "OutOfMemory" || !free_dead_cycles()) raise(e);
  }
  return on_card(f);
}

}  // namespace spyre
