// SPDX-License-Identifier: Apache-2.0
// DeepTools' host functions, and jobs that do not fit their launch.
#include <cmath>
#include <limits>
#include <sstream>

#include "check.h"
#include "deeptools/json.h"
#include "spyrecode-host-functions/fast_process_hcm.h"
#include "spyrecode-host-functions/processSpyreCodeArtifacts.h"
#include "spyrecode-host-functions/sendataconvert/sen_data_convert.h"

CASE(hcm) {
  auto hcm = std::make_unique<Hcm>();
  THROWS("object", hcm->importJsonStr("\"text\""));
  THROWS("vdci field", hcm->importJsonStr("{\"vdci\": [], \"senConstants\": []}"));
  THROWS("vdci field", hcm->importJsonStr("{}"));
  for (const char* bad : {"", "{", "{\"vdci\": {}", "{\"vdci\": {}} x", "{\"vdci\": {\"a\": {\"count\": \"-1\"}}}",
                          "{\"vdci\": {\"a\": {}}}", "{\"vdci\": {}, \"senConstants\": [1.5]}", "[1, 2", "\"\\q\""})
    THROWS("", hcm->importJsonStr(bad));
  THROWS("nested", hcm->importJsonStr(std::string(100000, '[')));

  hcm->importJsonStr("{\"vdci\": {}, \"senConstants\": []}");
  uint64_t out[4] = {9, 9, 9, 9};
  const int64_t in[3] = {11, 22, 33};
  deeptools::FastHcmPatchPlan plan;
  CHECK(!deeptools::buildFastHcmPatchPlan(plan, *hcm) && !plan.valid && plan.patches.size() == 0);
  THROWS("Expect one DCI", deeptools::processComputeOnHostCommand(*hcm, out, in));
  THROWS("Expect one DCI", deeptools::processComputeOnHostCommand(*hcm, out, nullptr));
  THROWS("Expect one DCI", deeptools::processComputeOnHostCommandFast(plan, *hcm, out, in, 3));

  hcm->importJsonStr("{\"vdci\": {\"arguments\": {\"count\": \"3\"}}, \"senConstants\": [\"-1\"]}");
  CHECK(!deeptools::buildFastHcmPatchPlan(plan, *hcm));  // the general way writes the constant
  deeptools::processComputeOnHostCommandFast(plan, *hcm, out, in, 3);
  CHECK(out[0] == 11 && out[1] == 22 && out[2] == 33 && out[3] == ~uint64_t{0});
  deeptools::processComputeOnHostCommand(*hcm, out, nullptr);
  CHECK(out[0] == 0 && out[2] == 0);

  hcm->importJsonStr("{\"vdci\": {\"arguments\": {\"count\": 3}}, \"senConstants\": []}");
  CHECK(deeptools::buildFastHcmPatchPlan(plan, *hcm) && plan.valid);
  CHECK(plan.output_size == 24 && plan.num_input_symbols == 3 && plan.patches.size() == 3);
  out[3] = 9;
  CHECK(deeptools::processComputeOnHostCommandFast(plan, *hcm, out, in, 3));
  CHECK(out[0] == 11 && out[1] == 22 && out[2] == 33 && out[3] == 9);
  THROWS("Number of inputs mismatches", deeptools::processComputeOnHostCommandFast(plan, *hcm, out, in, 2));
}

CASE(codes_of_constants) {
  CHECK(deeptools::FloatToFp16Bin(0) == 0 && deeptools::FloatToFp16Bin(1) == 0x3E00);
  CHECK(deeptools::FloatToFp16Bin(-2) == 0xC000 && deeptools::FloatToFp16Bin(0.5908203125f) == 0x3C5D);
  CHECK(deeptools::FloatToFp16Bin(std::numeric_limits<float>::infinity()) == 0x7FFE);
  CHECK(deeptools::FloatToFp16Bin(std::nanf("")) == 0x7FFF);
  CHECK(deeptools::BinaryConvert<uint32_t>(1.0f) == 0x3F800000);
}

CASE(conversion_as_text) {
  data_conversion_info info{};
  info.dci_dsName_ = "a\"b";
  info.dataformat_src_ = DataFormats::IEEE_FP16;
  info.dataformat_dst_ = DataFormats::SEN169_FP16;
  info.dcsi_.push_back({{64, 2}, {1, 64}, {1, 64}, 0, 3});
  info.output_shape_ = {64, 2};
  std::ostringstream out;
  info.exportJson(out);
  const spyre::sdk::Json read = spyre::sdk::parse_json(out.str());
  CHECK(read.find("dci_dsName_")->text == "a\"b" && read.find("dataformat_dst_")->text == "SEN169_FP16");
  CHECK(read.find("dcsi_")->items.at(0).find("offset_dst_")->text == "3");
  CHECK(read.find("output_shape_")->items.size() == 2);
}

// job_errors <folder of a job with three arguments of 64 KiB>
CASE(job_errors) {
  auto context = start();
  flex::RuntimeStream* stream = context->getDefaultStream();
  JobPlan plan(arguments.at(0), *context, stream);
  std::vector<flex::CompositeAddress> memory;
  for (int i = 0; i < 3; ++i) memory.push_back(context->getAllocator()->allocate(1 << 16, tensor_memory()));
  flex::CompositeAddress small = context->getAllocator()->allocate(128, tensor_memory());
  for (auto& each : memory) stream->fillAsync(&each, 1, DataFormats::SEN169_FP16, true);
  THROWS("Number of inputs mismatches", plan.launch(stream, {&memory[0], &memory[1]}));
  THROWS("InvalidArgument", plan.launch(stream, {&memory[0], &memory[1], &small}));
  CHECK(!context->hasStreamError());
  plan.launch(stream, {&memory[0], &memory[1], &memory[2]});
  uint16_t got[64];
  stream->synchronize();
  transfer(stream, got, 128, false, memory[2]);
  CHECK(got[0] == deeptools::FloatToFp16Bin(2) && got[63] == got[0]);
  // The image is damaged: what was read from it before is forgotten.
  char zeros[128] = {};
  const flex::Chunk& whole = plan.memory().chunks()[0];
  const flex::LogicalAddress header(whole.addr.region_id, whole.addr.offset + 128);
  transfer(stream, zeros, 128, true, flex::CompositeAddress(flex::Chunk(header, 128, 0)));
  THROWS("no job of this SDK", plan.launch(stream, {&memory[0], &memory[1], &memory[2]}));
}

// bound_tensors <the same>: addresses come with the launch, not from the job's memory.
CASE(bound_tensors) {
  auto context = start();
  flex::RuntimeStream* stream = context->getDefaultStream();
  JobPlan plan(arguments.at(0), *context, stream);
  std::vector<flex::CompositeAddress> memory;
  for (int i = 0; i < 3; ++i) memory.push_back(context->getAllocator()->allocate(1 << 16, tensor_memory()));
  for (auto& each : memory) stream->fillAsync(&each, 2, DataFormats::SEN169_FP16, true);
  auto* params = flex::createComputeParams(&plan.memory(), {&memory[0], &memory[1], &memory[2]}, "add", 128);
  stream->launchOperationCompute(params);
  flex::destroyComputeParams(params);
  uint16_t got[64];
  transfer(stream, got, 128, false, memory[2]);
  CHECK(got[7] == deeptools::FloatToFp16Bin(4));
  params = flex::createComputeParams(&plan.memory(), {&memory[0]}, "add", 128);
  THROWS("takes 3 tensors", stream->launchOperationCompute(params));
  flex::destroyComputeParams(params);
}

// launches <the same>: one plan on several streams and several times; memory is freed while launches are queued.
CASE(launches) {
  auto context = start();
  flex::RuntimeStream* streams[] = {context->createStream(flex::RuntimeStreamPriority::NORMAL),
                                    context->createStream(flex::RuntimeStreamPriority::HIGH)};
  JobPlan plan(arguments.at(0), *context, context->getDefaultStream());
  std::vector<flex::CompositeAddress> sums;
  for (int i = 0; i < 40; ++i) {
    flex::RuntimeStream* stream = streams[i % 2];
    flex::CompositeAddress a = context->getAllocator()->allocate(1 << 16, tensor_memory());
    flex::CompositeAddress b = context->getAllocator()->allocate(1 << 16, tensor_memory());
    sums.push_back(context->getAllocator()->allocate(1 << 16, tensor_memory()));
    stream->fillAsync(&a, i, DataFormats::SEN169_FP16, true);
    stream->fillAsync(&b, 1, DataFormats::SEN169_FP16, true);
    plan.launch(stream, {&a, &b, &sums.back()});
  }
  for (int i = 0; i < 40; ++i) {
    uint16_t got[64];
    transfer(streams[i % 2], got, 128, false, sums[static_cast<size_t>(i)]);
    CHECK(got[5] == deeptools::FloatToFp16Bin(static_cast<float>(i + 1)));
  }
}

// sanitized <the same>, with SPYRE_SANITIZE=1: an input that nobody wrote, then a sum that no number of the format
// holds.
CASE(sanitized) {
  auto context = start();
  flex::RuntimeStream* stream = context->getDefaultStream();
  JobPlan plan(arguments.at(0), *context, stream);
  std::vector<flex::CompositeAddress> memory;
  for (int i = 0; i < 3; ++i) memory.push_back(context->getAllocator()->allocate(1 << 16, tensor_memory()));
  stream->fillAsync(&memory[0], 1, DataFormats::SEN169_FP16, true);
  THROWS("UninitializedRead", plan.launch(stream, {&memory[0], &memory[1], &memory[2]}));
  THROWS("core", plan.launch(stream, {&memory[0], &memory[1], &memory[2]}));
  stream->fillAsync(&memory[1], 6e9, DataFormats::SEN169_FP16, true);
  plan.launch(stream, {&memory[1], &memory[1], &memory[2]});
  stream->synchronize();
}
