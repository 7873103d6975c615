// SPDX-License-Identifier: Apache-2.0
// How the ranks find each other; the c10d store is not handed to this library, and its port is taken. Ranks of one host
// leave their places in files and read those of the others. Where there are several hosts, rank 0 listens beside the
// store and tells all of them to all.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "spyre/links.h"

namespace spyre_comms::internal {

/// What the environment says about this process.
struct World {
  int rank = 0, size = 1;
  int local_size = 1;       // ranks on this host
  std::string master;       // a name or an address of rank 0's host
  int port = 0;             // where rank 0 listens
  bool tcp_within = false;  // SPYRE_LINKS=tcp: as if every rank had a host of its own
  std::string name;         // the same for all ranks, another one for every other job and for every time it is set up
  std::chrono::milliseconds timeout{300'000};

  bool several_hosts() const { return local_size != size; }
};
World read_world();

/// Where a rank is.
struct Place {
  std::string host;  // equal for processes that see each other's memory
  spyre::card::LinkGroup::Address mailbox;
  std::string address = "-";  // where it can be reached; that of rank 0's host, if none is given
  int port = 0;               // where it listens for links
};
Place place_here(const World& world, const spyre::card::LinkGroup::Address& mailbox, int port);

/// Places by rank. Blocks until all are there; throws spyre::card::Error (CollectiveTimeout) if they do not come.
std::vector<Place> meet(const World& world, const Place& own);
/// Takes this rank's own file away, if it left one. All have read it.
void leave(const World& world);

}  // namespace spyre_comms::internal
