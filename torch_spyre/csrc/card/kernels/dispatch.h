// SPDX-License-Identifier: Apache-2.0
// Choice of the instruction set, for tests; users set SPYRE_ISA.
#pragma once
#include "isa.h"

namespace spyre::card {

/// "avx512", "avx2", "portable", or null for the best one. False if this machine does not have it.
bool set_isa(const char* name);

}  // namespace spyre::card
