// SPDX-License-Identifier: Apache-2.0
// All kernels, once per instruction set. See isa.h for why this is included and not linked.
#pragma once
#include "copy.h"
#include "generate.h"
#include "index.h"
#include "matmul.h"
#include "order.h"
#include "reduce.h"
#include "scan.h"
#include "vector_op.h"
