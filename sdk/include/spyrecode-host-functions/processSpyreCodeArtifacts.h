// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "spyrecode-host-functions/spyrecode.h"

namespace deeptools {

/// Fills the buffer of a ComputeOnHost command: the addresses at `in`, then the constants. Without `in` the addresses
/// are zero. Throws a std::exception unless the hcm has one conversion.
void processComputeOnHostCommand(Hcm& hcm, void* out, const void* in);

}  // namespace deeptools
