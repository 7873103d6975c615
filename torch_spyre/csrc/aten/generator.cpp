// SPDX-License-Identifier: Apache-2.0
#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

#include <deque>
#include <mutex>

#include "device.h"

namespace spyre {
namespace {

struct SpyreGeneratorImpl final : c10::GeneratorImpl {
  SpyreGeneratorImpl(c10::DeviceIndex index, at::Generator host)
      : GeneratorImpl(spyre_device(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(std::move(host)) {}

  void set_current_seed(uint64_t seed) override { host_.set_current_seed(seed); }
  uint64_t current_seed() const override { return host_.current_seed(); }
  uint64_t seed() override { return host_.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "Spyre Generator does not use offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "Spyre Generator does not use offset"); }
  void set_state(const c10::TensorImpl& state) override { host_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host_.unsafeGetGeneratorImpl()->get_state(); }
  const at::Generator& host() const { return host_; }

 private:
  SpyreGeneratorImpl* clone_impl() const override { return new SpyreGeneratorImpl(device_.index(), host_.clone()); }
  at::Generator host_;
};

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::mutex mutex;
  static auto* generators = new std::deque<at::Generator>;
  TORCH_CHECK(index >= -1 && index < device_count(), "Spyre device index is invalid");
  const auto device = static_cast<size_t>(resolve_device(index));
  std::lock_guard lock(mutex);
  while (generators->size() <= device) {
    auto host = at::detail::createCPUGenerator(c10::detail::getNonDeterministicRandom());
    generators->push_back(
        at::make_generator<SpyreGeneratorImpl>(static_cast<c10::DeviceIndex>(generators->size()), std::move(host)));
  }
  return (*generators)[device];
}

at::Generator new_generator(c10::DeviceIndex index) {
  TORCH_CHECK(index >= -1 && index < device_count(), "Spyre device index is invalid");
  return at::make_generator<SpyreGeneratorImpl>(resolve_device(index), at::detail::createCPUGenerator());
}

at::Generator host_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex index) {
  const auto& chosen = generator.has_value() && generator->defined() ? *generator : default_generator(index);
  if (chosen.device().is_cpu()) return chosen;
  TORCH_CHECK(chosen.device().type() == c10::DeviceType::PrivateUse1, "Expected a spyre generator, got one for ",
              chosen.device());
  return static_cast<SpyreGeneratorImpl*>(chosen.unsafeGetGeneratorImpl())->host();
}

}  // namespace spyre
