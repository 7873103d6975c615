// SPDX-License-Identifier: Apache-2.0
#include "comms/costs.h"

#include <algorithm>
#include <string>

namespace spyre_comms::internal {
namespace {

struct Row {
  const char* kind;
  int ranks;
  double start_ns, ns_per_byte, wire_bytes_per_byte;
  const char* algorithm;
};
constexpr Row kRows[] = {
#define COST(kind, ranks, start_ns, ns_per_byte, wire_bytes_per_byte, algorithm) \
  {#kind, ranks, start_ns, ns_per_byte, wire_bytes_per_byte, algorithm},
#include "comms/costs.def"
#undef COST
};

}  // namespace

std::vector<spyre::card::CollectiveCost> costs(int ranks) {
  int most = 0;
  for (const Row& row : kRows) most = std::max(most, row.ranks);
  std::vector<spyre::card::CollectiveCost> found(spyre::card::kCollectives);
  for (int kind = 0; kind < spyre::card::kCollectives; ++kind) {
    const std::string name = spyre::card::name_of(static_cast<spyre::card::Collective>(kind));
    // Messages are between two, however many there are.
    const bool message = name == "send" || name == "recv";
    for (const Row& row : kRows)
      if ((message ? "send" : name) == row.kind && row.ranks == std::min(message ? 2 : ranks, most))
        found[static_cast<size_t>(kind)] = {row.start_ns, row.ns_per_byte, row.wire_bytes_per_byte, row.algorithm};
  }
  return found;
}

}  // namespace spyre_comms::internal
