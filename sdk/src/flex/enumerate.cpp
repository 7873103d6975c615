// SPDX-License-Identifier: Apache-2.0
// Which cards a process may use. A software card costs nothing until it is opened, so there are as many as the largest
// host has; the variables are read at each call, which asks no card. Nothing throws here: callers may not.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string_view>

#include "flex/runtime.h"

namespace flex {
namespace {

constexpr int kCards = 8;
constexpr int kMostMocks = 1024;

std::optional<int> number(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

/// AIU_WORLD_SIZE, if it says something.
std::optional<int> world_size() {
  const std::string_view text = variable("AIU_WORLD_SIZE");
  if (text.empty()) return std::nullopt;
  const std::optional<int> value = number(text);
  static std::atomic<bool> told{false};
  if ((!value || *value < 0) && !told.exchange(true))
    std::fprintf(stderr, "flex: AIU_WORLD_SIZE is '%s', which is no number of cards; it is ignored\n",
                 std::string(text).c_str());
  return value && *value >= 0 ? value : std::nullopt;
}

}  // namespace

std::vector<int> internal::visible_cards() {
  const std::optional<int> world = world_size();
  const bool mock = variable("FLEX_DEVICE") == "MOCK";
  const int total = mock ? std::min(world.value_or(kCards), kMostMocks) : std::min(world.value_or(kCards), kCards);
  std::vector<int> cards(static_cast<size_t>(total));
  std::iota(cards.begin(), cards.end(), 0);
  std::string_view listed = variable("SPYRE_DEVICES");
  if (mock || listed.empty()) return cards;
  cards.clear();
  while (true) {
    const size_t comma = std::min(listed.find(','), listed.size());
    const std::optional<int> card = number(listed.substr(0, comma));
    const bool known = card && *card >= 0 && *card < total;
    if (known && std::find(cards.begin(), cards.end(), *card) == cards.end()) cards.push_back(*card);
    if (comma == listed.size()) return cards;
    listed.remove_prefix(comma + 1);
  }
}

int getNumDevices() { return static_cast<int>(internal::visible_cards().size()); }

}  // namespace flex
