// SPDX-License-Identifier: Apache-2.0
// Random fills: drawn on the host by the device's generator, then moved by DMA.
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cauchy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exponential.h>
#include <ATen/ops/geometric.h>
#include <ATen/ops/log_normal.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/random.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/uniform.h>
#include <torch/library.h>

#include "copy.h"
#include "factory.h"
#include "generator.h"

namespace spyre {
namespace {

using OptGenerator = std::optional<at::Generator>;

/// Calls draw(host tensor, host generator) and moves the result into self.
template <typename F>
at::Tensor& fill_from_host(at::Tensor& self, const OptGenerator& generator, F draw) {
  if (self.numel() == 0) return self;
  auto host = at::empty(self.sizes(), at::TensorOptions().dtype(self.scalar_type()));
  draw(host, host_generator(generator, self.device().index()));
  copy_from(host, self, false);
  return self;
}

at::Tensor& normal(at::Tensor& self, double mean, double std, OptGenerator g) {
  return fill_from_host(self, g, [&](at::Tensor& t, at::Generator h) { t.normal_(mean, std, h); });
}
at::Tensor& uniform(at::Tensor& self, double from, double to, OptGenerator g) {
  return fill_from_host(self, g, [&](at::Tensor& t, at::Generator h) { t.uniform_(from, to, h); });
}
at::Tensor& random(at::Tensor& self, OptGenerator g) {
  return fill_from_host(self, g, [&](at::Tensor& t, at::Generator h) {
    // int64 lives as int32 on the card: draw only what it can hold.
    if (t.scalar_type() == at::kLong) {
      t.random_(0, int64_t{1} << 31, h);
    } else {
      t.random_(h);
    }
  });
}
at::Tensor& random_from(at::Tensor& self, int64_t from, std::optional<int64_t> to, OptGenerator g) {
  return fill_from_host(self, g, [&](at::Tensor& t, at::Generator h) { t.random_(from, to, h); });
}
at::Tensor& random_to(at::Tensor& self, int64_t to, OptGenerator g) {
  return fill_from_host(self, g, [&](at::Tensor& t, at::Generator h) { t.random_(to, h); });
}
at::Tensor& bernoulli(at::Tensor& self, double p, OptGenerator g) {
  return fill_from_host(self, g, [&](at::Tensor& t, at::Generator h) { t.bernoulli_(p, h); });
}
at::Tensor& bernoulli_tensor(at::Tensor& self, const at::Tensor& p, OptGenerator g) {
  return fill_from_host(self, g, [&](at::Tensor& t, at::Generator h) { t.bernoulli_(p.cpu(), h); });
}
at::Tensor& exponential(at::Tensor& self, double lambda, OptGenerator g) {
  return fill_from_host(self, g, [&](at::Tensor& t, at::Generator h) { t.exponential_(lambda, h); });
}
at::Tensor& geometric(at::Tensor& self, double p, OptGenerator g) {
  return fill_from_host(self, g, [&](at::Tensor& t, at::Generator h) { t.geometric_(p, h); });
}
at::Tensor& log_normal(at::Tensor& self, double mean, double std, OptGenerator g) {
  return fill_from_host(self, g, [&](at::Tensor& t, at::Generator h) { t.log_normal_(mean, std, h); });
}
at::Tensor& cauchy(at::Tensor& self, double median, double sigma, OptGenerator g) {
  return fill_from_host(self, g, [&](at::Tensor& t, at::Generator h) { t.cauchy_(median, sigma, h); });
}
at::Tensor& randperm(int64_t n, OptGenerator g, at::Tensor& out) {
  resize(out, {n}, std::nullopt);
  return fill_from_host(out, g, [&](at::Tensor& t, at::Generator h) { at::randperm_out(t, n, h); });
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("normal_", TORCH_FN(normal));
  m.impl("uniform_", TORCH_FN(uniform));
  m.impl("random_", TORCH_FN(random));
  m.impl("random_.from", TORCH_FN(random_from));
  m.impl("random_.to", TORCH_FN(random_to));
  m.impl("bernoulli_.float", TORCH_FN(bernoulli));
  m.impl("bernoulli_.Tensor", TORCH_FN(bernoulli_tensor));
  m.impl("exponential_", TORCH_FN(exponential));
  m.impl("geometric_", TORCH_FN(geometric));
  m.impl("log_normal_", TORCH_FN(log_normal));
  m.impl("cauchy_", TORCH_FN(cauchy));
  m.impl("randperm.generator_out", TORCH_FN(randperm));
}

}  // namespace spyre
