// SPDX-License-Identifier: Apache-2.0
// The same as processComputeOnHostCommand, from a plan that is made once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "spyrecode-host-functions/spyrecode.h"

namespace deeptools {

struct FastHcmPatchPlan {
  struct Patch {
    uint32_t input;          // which address
    uint32_t output_offset;  // where its eight bytes go
  };
  bool valid = false;
  uint32_t output_size = 0;
  uint32_t num_input_symbols = 0;
  std::vector<Patch> patches;
};

/// False, and a plan that is not valid, if the general way has to be taken. Does not throw for an hcm that imports.
bool buildFastHcmPatchPlan(FastHcmPatchPlan& plan, const Hcm& hcm);

/// Fills `out` from the launch's addresses; takes the general way if the plan is not valid. Throws if `n` is not the
/// number of addresses that the hcm wants.
bool processComputeOnHostCommandFast(FastHcmPatchPlan& plan, Hcm& hcm, void* out, const int64_t* addresses, size_t n);

}  // namespace deeptools
