// SPDX-License-Identifier: Apache-2.0
#include "common/folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace spyre::sdk {

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

fs::path own_folder(const fs::path& path, const char* knob) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    throw Failure("cannot make " + path.string() + ": " + std::strerror(errno) + "; " + knob + " names another place");
  struct stat found;
  if (lstat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != geteuid() ||
      (found.st_mode & (S_IWGRP | S_IWOTH)))
    throw Failure(path.string() +
                  " is not a folder that only this user can write; remove it, or name another place in " + knob);
  return path;
}

fs::path runtime_folder() {
  const std::string named = variable("SPYRE_RUNTIME_DIR"), session = variable("XDG_RUNTIME_DIR");
  if (!named.empty()) return own_folder(named, "SPYRE_RUNTIME_DIR");
  if (!session.empty()) return own_folder(fs::path(session) / "torch_spyre", "SPYRE_RUNTIME_DIR");
  return own_folder("/tmp/torch_spyre-" + std::to_string(getuid()), "SPYRE_RUNTIME_DIR");
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !fs::is_regular_file(path) || !(text << file.rdbuf()))
    throw Failure("cannot read " + path.string() + ": " + std::strerror(errno));
  return text.str();
}

void write_file(const fs::path& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.flush();
  if (!file) throw Failure("cannot write " + path.string() + ": " + std::strerror(errno));
}

}  // namespace spyre::sdk
