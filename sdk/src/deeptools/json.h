// SPDX-License-Identifier: Apache-2.0
// Reads JSON: enough for the small documents of a SpyreCode directory.
#pragma once
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace spyre::sdk {

struct Json {
  enum class Kind { null, boolean, number, string, array, object };
  Kind kind = Kind::null;
  std::string text;  // of a string; of a number or boolean as it is written
  std::vector<Json> items;
  std::map<std::string, Json> members;

  bool is(Kind other) const { return kind == other; }
  const Json* find(const std::string& name) const {
    const auto found = members.find(name);
    return found == members.end() ? nullptr : &found->second;
  }
};

/// Throws std::invalid_argument with the position of what is wrong.
Json parse_json(std::string_view text);

}  // namespace spyre::sdk
