// SPDX-License-Identifier: Apache-2.0
// Copies that convert: a file describes them, the Python side knows what must come out.
#include <sstream>

#include "check.h"

// convert <folder>: `cases` there has, for each copy, a line "case name to_device source target device_bytes", lines
// "shape n ..." (input_shape_), "box rank sizes source_strides target_strides source_offset target_offset", and "end".
// Each has its host bytes in `name.host` and device bytes in `name.device`; both are written back.
CASE(convert) {
  auto context = start();
  flex::RuntimeStream* stream = context->getDefaultStream();
  std::istringstream text(read_text(arguments.at(0) + "/cases"));
  std::shared_ptr<data_conversion_info> info;
  std::string word, name;
  int to_device = 0, source = 0, target = 0;
  uint64_t device_bytes = 0;
  auto numbers = [&](std::vector<int64_t>& to, size_t n) {
    to.resize(n);
    for (int64_t& value : to) text >> value;
  };
  while (text >> word) {
    if (word == "case") {
      text >> name >> to_device >> source >> target >> device_bytes;
      info = std::make_shared<data_conversion_info>();
      info->isHostToSen_ = to_device;
      info->dataformat_src_ = static_cast<DataFormats>(source);
      info->dataformat_dst_ = static_cast<DataFormats>(target);
    } else if (word == "shape") {
      size_t n;
      text >> n;
      numbers(info->input_shape_, n);
    } else if (word == "box") {
      size_t rank;
      text >> rank;
      data_conversion_stride_info& box = info->dcsi_.emplace_back();
      numbers(box.size_, rank);
      numbers(box.stride_src_, rank);
      numbers(box.stride_dst_, rank);
      text >> box.offset_src_ >> box.offset_dst_;
    } else {
      CHECK(word == "end");
      const std::string place = arguments[0] + "/" + name;
      std::string host = read_text(place + ".host"), device = read_text(place + ".device");
      CHECK(device.size() == device_bytes);
      flex::CompositeAddress memory = context->getAllocator()->allocate(device_bytes, tensor_memory());
      transfer(stream, device.data(), device.size(), true, memory);
      transfer(stream, host.data(), host.size(), to_device, memory, info);
      transfer(stream, device.data(), device.size(), false, memory);
      write_text(place + ".host", host);
      write_text(place + ".device", device);
    }
  }
}

CASE(convert_checks) {
  auto context = start();
  flex::RuntimeStream* stream = context->getDefaultStream();
  flex::CompositeAddress memory = context->getAllocator()->allocate(128, tensor_memory());
  std::vector<float> host(64);
  auto info = std::make_shared<data_conversion_info>();
  info->isHostToSen_ = true;
  info->dataformat_src_ = info->dataformat_dst_ = DataFormats::IEEE_FP32;
  info->dcsi_.push_back({{33}, {1}, {1}, 0, 0});
  THROWS("OutOfBounds", transfer(stream, host.data(), 132, true, memory, info));
  info->dcsi_[0] = {{32}, {1}, {1}, 0, 1};
  THROWS("OutOfBounds", transfer(stream, host.data(), 128, true, memory, info));
  info->dcsi_[0] = {{32}, {1}, {-1}, 0, 0};
  THROWS("OutOfBounds", transfer(stream, host.data(), 128, true, memory, info));
  info->dcsi_[0] = {{32, 1}, {1}, {1}, 0, 0};
  THROWS("InvalidArgument", transfer(stream, host.data(), 128, true, memory, info));
  info->dcsi_[0] = {{32}, {1}, {1}, 0, 0};
  THROWS("InvalidArgument", transfer(stream, host.data(), 128, false, memory, info));
  info->dataformat_dst_ = DataFormats::SEN153_FP9;
  THROWS("InvalidArgument", transfer(stream, host.data(), 128, true, memory, info));
  info->dataformat_dst_ = DataFormats::SENINT4;
  info->dcsi_[0] = {{257}, {0}, {1}, 0, 0};
  THROWS("OutOfBounds", transfer(stream, host.data(), 128, true, memory, info));
  // An int64 that the card cannot hold is an error, and one of that copy alone.
  std::vector<int64_t> wide{1, int64_t{1} << 40};
  info->dataformat_src_ = DataFormats::IEEE_INT64;
  info->dataformat_dst_ = DataFormats::IEEE_INT32;
  info->dcsi_[0] = {{2}, {1}, {1}, 0, 0};
  THROWS("Overflow", transfer(stream, wide.data(), 16, true, memory, info));
  wide[1] = -7;
  transfer(stream, wide.data(), 16, true, memory, info);
  int32_t narrow[32];
  transfer(stream, narrow, 128, false, memory);
  CHECK(narrow[0] == 1 && narrow[1] == -7 && narrow[2] == 0 && narrow[31] == 0);
  CHECK(!stream->needsShutdown() && !context->hasStreamError());
}

// Both sides are called SENUINT32, but the host has one byte for each element.
CASE(uint8) {
  auto context = start();
  flex::RuntimeStream* stream = context->getDefaultStream();
  flex::CompositeAddress memory = context->getAllocator()->allocate(512, tensor_memory());
  std::vector<uint8_t> host(100, 0);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<uint8_t>(3 * i);
  auto info = std::make_shared<data_conversion_info>();
  info->isHostToSen_ = true;
  info->dataformat_src_ = info->dataformat_dst_ = DataFormats::SENUINT32;
  info->dcsi_.push_back({{32, 3}, {1, 32}, {1, 32}, 0, 0});
  info->dcsi_.push_back({{4, 1}, {1, 32}, {1, 32}, 96, 96});
  transfer(stream, host.data(), host.size(), true, memory, info);
  std::vector<uint32_t> device(128);
  transfer(stream, device.data(), 512, false, memory);
  for (size_t i = 0; i < device.size(); ++i) CHECK(device[i] == (i < host.size() ? host[i] : 0u));
  for (uint32_t& value : device) value = 255 - value;
  transfer(stream, device.data(), 512, true, memory);
  info->isHostToSen_ = false;
  std::vector<uint8_t> back(101, 77);
  transfer(stream, back.data(), 100, false, memory, info);
  for (size_t i = 0; i < host.size(); ++i) CHECK(back[i] == 255 - host[i]);
  CHECK(back[100] == 77);
}

CASE(more_than_eight_dims) {
  // Ten dims of two that do not merge: bit-reversed order.
  auto context = start();
  flex::CompositeAddress memory = context->getAllocator()->allocate(4096, tensor_memory());
  std::vector<float> host(1024);
  for (int i = 0; i < 1024; ++i) host[static_cast<size_t>(i)] = static_cast<float>(i);
  auto info = std::make_shared<data_conversion_info>();
  info->isHostToSen_ = true;
  info->dataformat_src_ = info->dataformat_dst_ = DataFormats::IEEE_FP32;
  data_conversion_stride_info box;
  for (int d = 0; d < 10; ++d) {
    box.size_.push_back(2);
    box.stride_src_.push_back(512 >> d);
    box.stride_dst_.push_back(1 << d);
  }
  info->dcsi_.push_back(box);
  transfer(context->getDefaultStream(), host.data(), 4096, true, memory, info);
  std::vector<float> got(1024);
  transfer(context->getDefaultStream(), got.data(), 4096, false, memory);
  for (int i = 0; i < 1024; ++i) {
    int reversed = 0;
    for (int d = 0; d < 10; ++d) reversed |= (i >> d & 1) << (9 - d);
    CHECK(got[static_cast<size_t>(i)] == static_cast<float>(reversed));
  }
}
