// SPDX-License-Identifier: Apache-2.0
#include "dxp/places.h"

#include <sys/stat.h>
#include <algorithm>
#include <sstream>
#include <vector>

#include "dxp/sha256.h"

namespace spyre::sdk {
namespace {

constexpr const char* kVersion = "spyre-sdk job 1";

/// Sources of the compiler, in order.
std::vector<fs::path> sources(const fs::path& package) {
  std::vector<fs::path> found;
  auto take = [&](const fs::directory_entry& entry) {
    const std::string kind = entry.path().extension();
    if (kind == ".py" || kind == ".toml" || kind == ".def") found.push_back(entry.path());
  };
  for (const auto& entry : fs::directory_iterator(package)) take(entry);
  for (const char* folder : {"optable", "ir", "backend", "perf", "runtime", "sdk", "csrc/card/include"})
    if (fs::is_directory(package / folder))
      for (const auto& entry : fs::recursive_directory_iterator(package / folder)) take(entry);
  std::sort(found.begin(), found.end());
  return found;
}

std::string stamp_of(const Compiler& compiler) {
  Sha256 hash;
  hash.add_part(kVersion);
  hash.add_part(compiler.python);
  for (const fs::path& file : sources(fs::path(compiler.root) / "torch_spyre")) {
    struct stat found;
    if (stat(file.c_str(), &found) != 0) continue;
    hash.add_part(file.string());
    hash.add_part(std::to_string(found.st_size) + " " + std::to_string(found.st_mtim.tv_sec) + "." +
                  std::to_string(found.st_mtim.tv_nsec));
  }
  return hash.hex();
}

}  // namespace

Compiler find_compiler() {
  const fs::path note = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "share/spyre-sdk/compiler";
  std::istringstream lines(read_file(note));
  Compiler compiler;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("python=")) compiler.python = line.substr(7);
    if (line.starts_with("root=")) compiler.root = line.substr(5);
  }
  if (!fs::is_directory(fs::path(compiler.root) / "torch_spyre"))
    throw Failure("the compiler in '" + compiler.root + "', which " + note.string() +
                  " names, is not there; run `make sdk` again");
  compiler.stamp = stamp_of(compiler);
  return compiler;
}

fs::path cache_folder() {
  // Not beside Inductor's cache: tests give each process an empty one.
  std::string root = variable("SPYRE_CACHE_DIR");
  if (root.empty()) {
    const std::string base = variable("XDG_CACHE_HOME");
    root = (base.empty() ? variable("HOME") + "/.cache" : base) + "/torch_spyre";
  }
  std::error_code error;
  fs::create_directories(root, error);
  return own_folder(fs::path(root) / "dxp", "SPYRE_CACHE_DIR");
}

std::string bundle_key(const fs::path& bundle, const Compiler& compiler) {
  if (!fs::is_regular_file(bundle / "bundle.mlir"))
    throw Failure("Bundle not found: " + (bundle / "bundle.mlir").string() +
                  "; -d names a folder with bundle.mlir and sdsc_<i>.json");
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(bundle))
    if (entry.is_regular_file() && (entry.path().extension() == ".json" || entry.path().filename() == "bundle.mlir"))
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Sha256 hash;
  hash.add_part(compiler.stamp);
  for (const fs::path& file : files) {
    hash.add_part(file.filename().string());
    hash.add_part(read_file(file));
  }
  return hash.hex();
}

}  // namespace spyre::sdk
