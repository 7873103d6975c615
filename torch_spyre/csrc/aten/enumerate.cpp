// SPDX-License-Identifier: Apache-2.0
#include "enumerate.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "errors.h"

namespace spyre {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto blank = [](unsigned char c) { return std::isspace(c) != 0; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<int> parse_int(std::string_view text) {
  text = trimmed(text);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// A number from the environment; `absent` if the variable is unset or blank.
int read_int(const char* name, int absent) {
  const char* text = std::getenv(name);
  if (!text || trimmed(text).empty()) return absent;
  const auto value = parse_int(text);
  if (!value) raise("InvalidArgument", std::string(name) + " is '" + text + "'; set it to a whole number or unset it");
  return *value;
}

bool is_mock() {
  const char* text = std::getenv("FLEX_DEVICE");
  if (!text || trimmed(text).empty()) return false;
  std::string kind(trimmed(text));
  std::transform(kind.begin(), kind.end(), kind.begin(), [](unsigned char c) { return std::toupper(c); });
  if (kind == "PF" || kind == "VF") return false;
  if (kind == "MOCK") return true;
  raise("InvalidArgument", std::string("FLEX_DEVICE is '") + text + "'; known are PF, VF and MOCK");
}

std::vector<int> listed_cards(const char* text, int total) {
  std::vector<int> cards;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    const auto card = parse_int(item);
    if (!card || *card < 0 || *card >= total || std::count(cards.begin(), cards.end(), *card)) continue;
    cards.push_back(*card);
  }
  return cards;
}

std::vector<int> read_cards() {
  const bool mock = is_mock();
  const int world = read_int("AIU_WORLD_SIZE", read_int("LOCAL_WORLD_SIZE", 1));
  if (mock && world < 1) {
    raise("InvalidArgument",
          "FLEX_DEVICE=MOCK shows AIU_WORLD_SIZE cards, which is " + std::to_string(world) + "; set it to 1 or more");
  }
  const int total = std::clamp(world, 0, kMaxDevices);
  const char* listed = std::getenv("SPYRE_DEVICES");
  if (!mock && listed && !trimmed(listed).empty()) return listed_cards(listed, total);
  std::vector<int> cards(total);
  std::iota(cards.begin(), cards.end(), 0);
  return cards;
}

}  // namespace

const std::vector<int>& visible_cards() {
  static const auto* cards = new std::vector<int>(read_cards());
  return *cards;
}

int default_device() {
  static const int rank = std::clamp(read_int("LOCAL_RANK", 0), 0, kMaxDevices - 1);
  return rank;
}

}  // namespace spyre
