// SPDX-License-Identifier: Apache-2.0
// How the ranks of one host find each other: each leaves the address of its mailbox in a file and reads those of the
// others. The c10d store is not handed to this library, and its port is taken.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "spyre/links.h"

namespace spyre_comms::internal {

/// What the environment says about this process.
struct World {
  int rank = 0, size = 1;
  std::string name;  // the same for all ranks, another one for every other job and for every time it is set up
  std::chrono::milliseconds timeout{300'000};
};
World read_world();

/// Addresses by rank. Blocks until all are there; throws spyre::card::Error (CollectiveTimeout) if they do not come.
std::vector<spyre::card::LinkGroup::Address> meet(const World& world, const spyre::card::LinkGroup::Address& own);
/// Takes this rank's own file away. All have read it.
void leave(const World& world);

}  // namespace spyre_comms::internal
