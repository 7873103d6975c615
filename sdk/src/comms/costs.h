// SPDX-License-Identifier: Apache-2.0
// What collectives cost on the card's clock.
#pragma once
#include <vector>

#include "spyre/links.h"

namespace spyre_comms::internal {

/// By kind, for a group of so many ranks.
std::vector<spyre::card::CollectiveCost> costs(int ranks);

}  // namespace spyre_comms::internal
