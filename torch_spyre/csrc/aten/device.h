// SPDX-License-Identifier: Apache-2.0
// Devices of this process: how many there are, which one is current, and the card behind each.
//
// Holds: one card per device, opened when something is first allocated on it. Asking for the count, the current device
// or a generator opens nothing.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <string>

#include "spyre/card.h"

namespace spyre {

/// Raises if the environment does not say how many there are; the other form then gives 0.
c10::DeviceIndex device_count();
c10::DeviceIndex device_count_or_zero() noexcept;
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);

/// The message for a number that is no card's.
std::string no_such_device(int64_t index);
/// -1 and absent mean the current device; anything else out of range raises.
c10::DeviceIndex resolve_device(c10::DeviceIndex index);
c10::Device spyre_device(c10::DeviceIndex index);

/// The card of a device, opened on first use. Raises in a process forked after a card was opened.
card::Card& card_of(c10::DeviceIndex index);
bool is_open(c10::DeviceIndex index);
bool any_open();
/// True in a child forked after a card was opened: the card's threads did not come along.
bool in_bad_fork();

/// These wait and raise the error of work that failed; nothing to do if the card is not open.
void synchronize_device(c10::DeviceIndex index);
void synchronize_stream(c10::Stream stream);
/// True if everything submitted to the stream is done; raises the error of work that failed.
bool stream_idle(c10::Stream stream);
/// Forgets errors and injected faults of the card.
void reset_device(c10::DeviceIndex index, bool drop_queued);

/// Streams: id 0 is the default, 1-32 the low-priority pool, 33-64 the high-priority pool, handed out round-robin.
/// Each thread has its own current stream on each device; launches and copies go there.
int current_stream_id(c10::DeviceIndex index);
c10::Stream current_stream(c10::DeviceIndex index);
c10::Stream default_stream(c10::DeviceIndex index);
c10::Stream stream_from_pool(c10::DeviceIndex index, int priority);
/// The next of the streams on which exchanges with other cards wait.
c10::Stream link_stream(c10::DeviceIndex index);
/// Returns the stream that was current on that device.
c10::Stream exchange_stream(c10::Stream stream);

}  // namespace spyre
