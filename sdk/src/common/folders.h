// SPDX-License-Identifier: Apache-2.0
// Folders that only this user writes.
#pragma once
#include <filesystem>
#include <stdexcept>
#include <string>

namespace spyre::sdk {

namespace fs = std::filesystem;

/// A failure that is told to the user as it is.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The value of an environment variable, or nothing.
std::string variable(const char* name);

/// The folder, made if need be. `knob` is the variable that names another place. Throws Failure.
fs::path own_folder(const fs::path& path, const char* knob);

/// Where processes of this user find each other: SPYRE_RUNTIME_DIR, or a place of the session.
fs::path runtime_folder();

std::string read_file(const fs::path& path);
void write_file(const fs::path& path, const std::string& content);

}  // namespace spyre::sdk
