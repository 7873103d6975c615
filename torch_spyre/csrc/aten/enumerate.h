// SPDX-License-Identifier: Apache-2.0
// Which cards this process sees, from its environment.
//
// AIU_WORLD_SIZE (default 1) is how many there are. SPYRE_DEVICES, a comma list, selects some: device i is the i-th
// listed card; blanks are ignored, repeated and missing cards dropped. FLEX_DEVICE names the kind: PF (a whole card,
// the default), VF (a share of one) or MOCK; all three are the software card, and MOCK takes no notice of
// SPYRE_DEVICES. LOCAL_RANK is the current device of a thread that never chose one.
#pragma once
#include <vector>

namespace spyre {

constexpr int kMaxDevices = 64;

/// Card numbers by device index. Reads the environment once; raises InvalidArgument for a value it cannot read.
const std::vector<int>& visible_cards();

/// LOCAL_RANK, or 0. May lie past the last device: using it then raises.
int default_device();

}  // namespace spyre
