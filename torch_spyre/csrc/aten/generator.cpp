// SPDX-License-Identifier: Apache-2.0
#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Utils.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>
#include <deque>
#include <mutex>

#include "device.h"
#include "recording.h"

namespace spyre {
namespace {

/// SplitMix64 (Steele et al., 2014): neighbouring inputs give unrelated outputs, different ones different outputs.
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

struct SpyreGeneratorImpl final : c10::GeneratorImpl {
  explicit SpyreGeneratorImpl(c10::DeviceIndex index, uint64_t seed = c10::default_rng_seed_val)
      : GeneratorImpl(spyre_device(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), seed_(seed) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    draws_ = 0;
  }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(uint64_t offset) override { draws_ = offset; }
  uint64_t get_offset() const override { return draws_; }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == kStateBytes, "RNG state of a spyre generator has ", kStateBytes, " bytes, got ",
                state.numel());
    const auto* bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, sizeof seed_);
    std::memcpy(&draws_, bytes + sizeof seed_, sizeof draws_);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({kStateBytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    auto* bytes = static_cast<char*>(state.data_ptr());
    std::memcpy(bytes, &seed_, sizeof seed_);
    std::memcpy(bytes + sizeof seed_, &draws_, sizeof draws_);
    return state.getIntrusivePtr();
  }

  uint64_t draw() { return mixed(mixed(seed_) + draws_++); }

 private:
  static constexpr int64_t kStateBytes = 16;

  SpyreGeneratorImpl* clone_impl() const override {
    auto* copy = new SpyreGeneratorImpl(device_.index(), seed_);
    copy->draws_ = draws_;
    return copy;
  }

  uint64_t seed_;
  uint64_t draws_ = 0;
};

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::mutex mutex;
  static auto* generators = new std::deque<at::Generator>;
  TORCH_CHECK(index >= -1 && index < device_count(), "Spyre device index is invalid");
  const auto device = static_cast<size_t>(resolve_device(index));
  std::lock_guard lock(mutex);
  while (generators->size() <= device) {
    generators->push_back(at::make_generator<SpyreGeneratorImpl>(static_cast<c10::DeviceIndex>(generators->size()),
                                                                 c10::detail::getNonDeterministicRandom()));
  }
  return (*generators)[device];
}

at::Generator new_generator(c10::DeviceIndex index) {
  TORCH_CHECK(index >= -1 && index < device_count(), "Spyre device index is invalid");
  return at::make_generator<SpyreGeneratorImpl>(resolve_device(index));
}

uint64_t draw_key(const std::optional<at::Generator>& generator, c10::DeviceIndex index) {
  auto chosen = generator.has_value() && generator->defined() ? *generator : default_generator(index);
  Recording::spoil_active("random numbers");
  std::lock_guard lock(chosen.mutex());
  if (chosen.device().is_cpu()) return chosen.get<at::CPUGeneratorImpl>()->random64();
  TORCH_CHECK(chosen.device().type() == c10::DeviceType::PrivateUse1, "Expected a spyre generator, got one for ",
              chosen.device());
  return static_cast<SpyreGeneratorImpl*>(chosen.unsafeGetGeneratorImpl())->draw();
}

}  // namespace spyre
