// SPDX-License-Identifier: Apache-2.0
// dxp_standalone -d <dir>: compiles the bundle in a folder to <dir>/spyreCodeDir.
//
// A small client: it looks into the cache, which is keyed by the bundle's content and the compiler's, and asks the
// compile server for what is not there.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "dxp/places.h"
#include "dxp/server.h"
#include "dxp/sha256.h"

namespace spyre::sdk {
namespace {

constexpr const char* kUsage = "usage: dxp_standalone -d <dir>\n\nCompiles <dir>/bundle.mlir to <dir>/spyreCodeDir.\n";
constexpr const char* kFiles[] = {"spyrecode.json", "init_binary.bin"};

struct Compiled {
  std::string files[2];
};

/// What an entry of the cache holds, if it is whole.
bool recall(const fs::path& entry, Compiled& found) {
  if (!fs::is_regular_file(entry / "checksum")) return false;
  try {
    Sha256 hash;
    for (int i = 0; i < 2; ++i) hash.add_part(found.files[i] = read_file(entry / kFiles[i]));
    return read_file(entry / "checksum") == hash.hex();
  } catch (const Failure&) {
    return false;
  }
}

void leave(const fs::path& bundle, const Compiled& compiled) {
  const fs::path target = bundle / "spyreCodeDir", partial = bundle / ("spyreCodeDir." + std::to_string(getpid()));
  std::error_code error;
  fs::create_directory(partial, error);
  for (int i = 0; i < 2; ++i) write_file(partial / kFiles[i], compiled.files[i]);
  fs::remove_all(target, error);
  fs::rename(partial, target, error);
  if (error) throw Failure("cannot write " + target.string() + ": " + error.message());
}

int compile(const fs::path& given) {
  std::error_code error;
  const fs::path bundle = fs::canonical(given, error);
  if (error) throw Failure(given.string() + ": " + error.message());
  const Compiler compiler = find_compiler();
  const std::string key = bundle_key(bundle, compiler);
  const fs::path entry = cache_folder() / key.substr(0, 2) / key;
  Compiled compiled;
  if (!recall(entry, compiled)) {
    const Reply reply = ask_server(compiler, bundle, entry);
    if (!reply.ok) {
      std::fprintf(stderr, "dxp_standalone: %s: %s\n", bundle.c_str(), reply.text.c_str());
      return 1;
    }
    if (!recall(entry, compiled)) throw Failure("the compile server left no entry in " + entry.string());
  }
  leave(bundle, compiled);
  return 0;
}

}  // namespace
}  // namespace spyre::sdk

int main(int argc, char** argv) {
  if (argc == 2 && (!std::strcmp(argv[1], "-h") || !std::strcmp(argv[1], "--help"))) {
    std::fputs(spyre::sdk::kUsage, stdout);
    return 0;
  }
  if (argc != 3 || std::strcmp(argv[1], "-d") != 0) {
    std::fputs(spyre::sdk::kUsage, stderr);
    return 2;
  }
  try {
    return spyre::sdk::compile(argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dxp_standalone: %s\n", error.what());
    return 1;
  }
}
