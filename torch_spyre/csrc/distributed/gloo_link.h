// SPDX-License-Identifier: Apache-2.0
// The way to a rank on another host: TCP, by PyTorch's Gloo.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>

#include "spyre/links.h"

namespace spyre {

/// `bell` is rung when bytes have moved.
std::unique_ptr<card::Link> gloo_link(c10::intrusive_ptr<c10d::Backend> gloo, int peer, std::function<void()> bell);

}  // namespace spyre
