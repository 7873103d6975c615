// SPDX-License-Identifier: Apache-2.0
// torch.distributed over the cards' links.
#pragma once
#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <memory>

#include "spyre/links.h"

namespace spyre {

c10::intrusive_ptr<c10d::Backend> make_backend(std::shared_ptr<card::LinkGroup> group,
                                               std::chrono::milliseconds timeout);

/// Its class, under torch's own.
void bind_backend(pybind11::module_& m);

}  // namespace spyre
