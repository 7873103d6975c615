// SPDX-License-Identifier: Apache-2.0
// Links to ranks of other hosts.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "comms/rendezvous.h"
#include "comms/sockets.h"

namespace spyre_comms::internal {

/// A connection for each lane, by the ranks that this one reaches by TCP only. Of two ranks the later one calls.
using Lanes = std::vector<Socket>;
std::map<int, Lanes> connect_all(const World& world, const std::vector<Place>& places, const Socket& listener);

std::unique_ptr<spyre::card::Link> tcp_link(int peer, Lanes lanes, std::function<void()> bell);

}  // namespace spyre_comms::internal
