// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <sstream>

#include "check.h"

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) fail(__FILE__, __LINE__, "cannot read " + path);
  return text.str();
}

void write_text(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  if (!file) fail(__FILE__, __LINE__, "cannot write " + path);
}

int main(int argc, char** argv) {
  if (argc == 1) {
    for (const auto& [name, run] : cases()) std::puts(name.c_str());
    return 0;
  }
  const auto found = cases().find(argv[1]);
  if (found == cases().end()) fail(__FILE__, __LINE__, std::string("no case ") + argv[1]);
  try {
    found->second(Arguments(argv + 2, argv + argc));
  } catch (const std::exception& error) {
    fail(argv[1], 0, error.what());
  }
  return 0;
}
