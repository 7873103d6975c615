// SPDX-License-Identifier: Apache-2.0
// What PyTorch asks a device type for: the guard (current device, streams) and the hooks (availability, generators,
// storage resizing).
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device.h"
#include "generator.h"
#include "storage.h"

namespace spyre {
namespace {

struct SpyreGuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return spyre_device(current_device()); }
  void setDevice(c10::Device device) const override { set_current_device(resolve_device(device.index())); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < device_count()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::Stream getStream(c10::Device device) const override { return current_stream(resolve_device(device.index())); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(resolve_device(device.index()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return stream_from_pool(resolve_device(device.index()), high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_from_pool(resolve_device(device.index()), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override { return device_idle(stream.device_index()); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize_device(stream.device_index()); }
  void synchronizeDevice(c10::DeviceIndex index) const override { synchronize_device(resolve_device(index)); }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    auto& bits = capability.capability_data.capability_bits;
    bits = 0;
    for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
      if (is_supported(static_cast<c10::ScalarType>(i))) bits |= uint64_t{1} << i;
    }
    return capability;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SpyreGuardImpl)

struct SpyreHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return is_open(resolve_device(index)); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto previous = current_device();
    set_current_device(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }
  /// Host bytes of the storage are kept; the next tensor used on it gives it a layout again.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    const std::vector<int64_t> size{static_cast<int64_t>(nbytes)};
    relayout_storage(storage, nullptr, at::kByte, size, {1}, nbytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new SpyreHooks);
  return true;
}();

}  // namespace
}  // namespace spyre
