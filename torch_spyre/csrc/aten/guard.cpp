// SPDX-License-Identifier: Apache-2.0
// What PyTorch asks a device type for: the guard (current device, streams, events) and the hooks (availability,
// generators, pinned memory, storage resizing).
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device.h"
#include "errors.h"
#include "generator.h"
#include "pinned.h"
#include "storage.h"

namespace spyre {
namespace {

/// What a c10::Event of this device points to.
struct Event {
  c10::DeviceIndex device;
  card::Marker marker;
};

const Event& event_of(void* event) { return *static_cast<const Event*>(event); }
int id_of(const c10::Stream& stream) { return static_cast<int>(stream.id()); }

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
  c10::DeviceIndex deviceCount() const noexcept override { return device_count_or_zero(); }

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
  /// Streams of exchanges with other cards are not for programs.
  c10::Stream exchangeStream(c10::Stream stream) const override {
    TORCH_CHECK(stream.id() < card::kStreams, "stream ", stream.id(), " does not exist; a card has 0..",
                card::kStreams - 1);
    return exchange_stream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override { return stream_idle(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize_stream(stream); }
  void synchronizeDevice(c10::DeviceIndex index) const override { synchronize_device(resolve_device(index)); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    const auto index = stream.device_index();
    TORCH_CHECK(device == -1 || device == index, "Event device index ", static_cast<int>(device),
                " does not match recording stream's device index ", static_cast<int>(index), ".");
    const auto marker = on_card([&] { return card_of(index).record(id_of(stream)); });
    if (*event) {
      *static_cast<Event*>(*event) = {index, marker};
    } else {
      *event = new Event{index, marker};
    }
  }
  /// Cards do not see each other: the host waits for an event of another one.
  void block(void* event, const c10::Stream& stream) const override {
    const auto& e = event_of(event);
    auto& card = card_of(stream.device_index());
    on_card([&] {
      if (e.device == stream.device_index()) return card.wait(id_of(stream), e.marker);
      card_of(e.device).synchronize(e.marker);
      card.wait_until(id_of(stream), e.marker.time());
    });
  }
  bool queryEvent(void* event) const override {
    return card_of(event_of(event).device).complete(event_of(event).marker);
  }
  void synchronizeEvent(void* event) const override {
    on_card([&] { card_of(event_of(event).device).synchronize(event_of(event).marker); });
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  /// Milliseconds on the device clock.
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    const auto from = event_of(start).marker.time(), to = event_of(end).marker.time();
    return (static_cast<double>(to) - static_cast<double>(from)) / 1e6;
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    auto& bits = capability.capability_data.capability_bits;
    bits = 0;
    for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
      const auto dtype = static_cast<c10::ScalarType>(i);
      // Quantized numbers have a format on the card, but no tensors.
      if (is_supported(dtype) && !c10::isQIntType(dtype)) bits |= uint64_t{1} << i;
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
  bool isPinnedPtr(const void* data) const override { return pinned_block(data) != nullptr; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
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
