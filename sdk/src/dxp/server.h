// SPDX-License-Identifier: Apache-2.0
// The compile server, from its client's side.
#pragma once
#include "dxp/places.h"

namespace spyre::sdk {

struct Reply {
  bool ok = false;
  std::string text;
};

/// Has a bundle compiled into the cache entry. Starts the server if there is none for this compiler.
Reply ask_server(const Compiler& compiler, const fs::path& bundle, const fs::path& entry);

}  // namespace spyre::sdk
