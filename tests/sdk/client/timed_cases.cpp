// SPDX-License-Identifier: Apache-2.0
// What benchmarks/sdk.py measures: each case prints lines "name seconds".
#include <algorithm>
#include <chrono>

#include "check.h"

static double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void print_median(const std::string& name, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  std::printf("%s %.9f\n", name.c_str(), seconds[seconds.size() / 2]);
}

/// A matrix of `rows` host rows of `columns` elements, in sticks of `stick` elements on the card.
static std::shared_ptr<data_conversion_info> rows_in_sticks(bool to_device, DataFormats host, DataFormats device,
                                                            int64_t rows, int64_t columns, int64_t stick) {
  auto info = std::make_shared<data_conversion_info>();
  info->isHostToSen_ = to_device;
  info->dataformat_src_ = to_device ? host : device;
  info->dataformat_dst_ = to_device ? device : host;
  const std::vector<int64_t> in_host{1, columns, stick}, in_sticks{1, stick, stick * rows};
  info->dcsi_.push_back(
      {{stick, rows, columns / stick}, to_device ? in_host : in_sticks, to_device ? in_sticks : in_host, 0, 0});
  return info;
}

// time_copies <megabytes> <rounds>: host tensors of that size, by the formats that PyTorch's dtypes have there.
CASE(time_copies) {
  struct Kind {
    const char* name;
    DataFormats host, device;
    int64_t host_bytes, device_bytes;
  };
  const Kind kinds[] = {{"float16", DataFormats::IEEE_FP16, DataFormats::SEN169_FP16, 2, 2},
                        {"bfloat16", DataFormats::BFLOAT16, DataFormats::SEN169_FP16, 2, 2},
                        {"float32", DataFormats::IEEE_FP32, DataFormats::IEEE_FP32, 4, 4},
                        {"float32_to_16", DataFormats::IEEE_FP32, DataFormats::SEN169_FP16, 4, 2},
                        {"int64", DataFormats::IEEE_INT64, DataFormats::IEEE_INT32, 8, 4},
                        {"bool", DataFormats::BOOL, DataFormats::SEN169_FP16, 1, 2}};
  auto context = start();
  const int64_t bytes = std::stoll(arguments.at(0)) << 20, columns = 4096;
  const int rounds = std::stoi(arguments.at(1));
  for (const Kind& kind : kinds) {
    const int64_t rows = bytes / kind.host_bytes / columns, stick = 128 / kind.device_bytes;
    std::vector<char> host(static_cast<size_t>(bytes), 0);
    flex::CompositeAddress memory =
        context->getAllocator()->allocate(static_cast<size_t>(rows * columns * kind.device_bytes), tensor_memory());
    for (bool to_device : {true, false}) {
      std::vector<double> seconds;
      for (int round = 0; round <= rounds; ++round) {
        const double begin = now_s();
        transfer(context->getDefaultStream(), host.data(), host.size(), to_device, memory,
                 rows_in_sticks(to_device, kind.host, kind.device, rows, columns, stick));
        if (round) seconds.push_back(now_s() - begin);  // the first one touches the pages
      }
      print_median(std::string(kind.name) + (to_device ? "_in" : "_out"), seconds);
    }
  }
}

// time_launches <folder> <tensors> <bytes of each> <launches>: host time of one launch, the card's own work left out.
CASE(time_launches) {
  auto context = start();
  flex::RuntimeStream* stream = context->getDefaultStream();
  JobPlan plan(arguments.at(0), *context, stream);
  std::vector<flex::CompositeAddress> memory;
  std::vector<const flex::CompositeAddress*> tensors;
  for (int i = 0; i < std::stoi(arguments.at(1)); ++i) {
    memory.push_back(context->getAllocator()->allocate(std::stoull(arguments.at(2)), tensor_memory()));
    stream->fillAsync(&memory.back(), 1, DataFormats::SEN169_FP16, true);
  }
  for (const flex::CompositeAddress& each : memory) tensors.push_back(&each);
  plan.launch(stream, tensors);
  stream->synchronize();
  std::vector<double> seconds;
  for (int i = 0; i < std::stoi(arguments.at(3)); ++i) {
    const double begin = now_s();
    plan.launch(stream, tensors);
    seconds.push_back(now_s() - begin);
    stream->synchronize();
  }
  print_median("launch", seconds);
}
