// SPDX-License-Identifier: Apache-2.0
// Counters for Python: both extensions show them in the same words.
#pragma once
#include <pybind11/pybind11.h>

#include "spyre/card.h"

namespace spyre::card {

inline pybind11::dict counters_dict(const Counters& c) {
  pybind11::dict d;
  d["launches"] = c.launches;
  d["instructions"] = c.instructions;
  d["memory_read_bytes"] = c.memory_read_bytes;
  d["memory_write_bytes"] = c.memory_write_bytes;
  d["lx_read_bytes"] = c.lx_read_bytes;
  d["lx_write_bytes"] = c.lx_write_bytes;
  d["ring_bytes"] = c.ring_bytes;
  d["dma_in_bytes"] = c.dma_in_bytes;
  d["dma_out_bytes"] = c.dma_out_bytes;
  d["page_reclaims"] = c.page_reclaims;
  d["compute_ns"] = c.compute_ns;
  d["dma_in_ns"] = c.dma_in_ns;
  d["dma_out_ns"] = c.dma_out_ns;
  return d;
}

}  // namespace spyre::card
