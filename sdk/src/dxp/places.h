// SPDX-License-Identifier: Apache-2.0
// What the compile command needs to know: the compiler it belongs to, the cache, the key of a bundle.
#pragma once
#include <string>

#include "common/folders.h"

namespace spyre::sdk {

/// The compiler that `make sdk` wrote down, and what it is just now: a hash over its sources' names, sizes and times.
struct Compiler {
  std::string python, root, stamp;
};
Compiler find_compiler();

/// The cache of compiled bundles. Made if need be.
fs::path cache_folder();

/// The files of a bundle that decide what it compiles to, as one hash.
std::string bundle_key(const fs::path& bundle, const Compiler& compiler);

}  // namespace spyre::sdk
