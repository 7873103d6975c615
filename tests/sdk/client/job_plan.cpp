// SPDX-License-Identifier: Apache-2.0
// prepare_kernel and launch_jobplan, in the order of calls of the checkout.
#include <cstring>

#include "check.h"
#include "deeptools/json.h"
#include "spyrecode-host-functions/fast_process_hcm.h"
#include "spyrecode-host-functions/processSpyreCodeArtifacts.h"

using spyre::sdk::Json;

struct JobPlan::State {
  flex::CompositeAddress memory;
  std::unique_ptr<Hcm> hcm;
  deeptools::FastHcmPatchPlan fast;
  std::vector<char> pinned;
  uint64_t sent = 0, sent_at = 0, bootstrap = 0;
  std::string name;
  flex::FlexAllocator* allocator = nullptr;
};

static const Json& get(const Json& object, const char* name) {
  const Json* found = object.find(name);
  if (!found) fail(__FILE__, __LINE__, std::string("spyrecode.json lacks ") + name);
  return *found;
}
static uint64_t number(const Json& properties, const char* name) { return std::stoull(get(properties, name).text); }

JobPlan::JobPlan(const std::string& folder, flex::RuntimeContext& context, flex::RuntimeStream* stream)
    : state_(std::make_unique<State>()) {
  const Json code = spyre::sdk::parse_json(read_text(folder + "/spyrecode.json"));
  state_->allocator = context.getAllocator().get();
  for (const Json& command : get(code, "JobPreparationPlan").items) {
    const Json& properties = get(command, "properties");
    if (get(command, "command").text == "Allocate") {
      state_->memory = context.getAllocator()->allocate(number(properties, "size"), program_memory());
      continue;
    }
    std::string content = read_text(folder + "/" + get(properties, "init_bin_file").text);
    CHECK(content.size() == number(properties, "size"));
    transfer(stream, content.data(), content.size(), true, state_->memory);
  }
  for (const Json& command : get(code, "JobExecPlan").items) {
    const Json& properties = get(command, "properties");
    const std::string kind = get(command, "command").text;
    if (kind == "ComputeOnHost") {
      // The hcm of our compiler, as the checkout prints it again.
      const Json& arguments = get(get(get(properties, "hcm"), "vdci"), "arguments");
      state_->hcm = std::make_unique<Hcm>();
      state_->hcm->importJsonStr("{\"vdci\": {\"arguments\": {\"count\": \"" + get(arguments, "count").text +
                                 "\"}}, \"senConstants\": []}");
      CHECK(deeptools::buildFastHcmPatchPlan(state_->fast, *state_->hcm) && state_->fast.valid);
      state_->pinned.resize(number(properties, "size"));
      CHECK(state_->fast.output_size <= state_->pinned.size());
    } else if (kind == "DataTransfer") {
      CHECK(get(properties, "dirn").text == "false");
      state_->sent = number(properties, "size");
      state_->sent_at = number(properties, "dev_ptr") - flex::PROG_OFFSET_BASE;
    } else {
      CHECK(kind == "ComputeOnDevice");
      state_->bootstrap = number(properties, "job_bin_ptr") - flex::PROG_OFFSET_BASE;
      state_->name = get(properties, "name").text;
    }
  }
}

JobPlan::~JobPlan() = default;

const flex::CompositeAddress& JobPlan::memory() const { return state_->memory; }

void JobPlan::launch(flex::RuntimeStream* stream, const std::vector<const flex::CompositeAddress*>& tensors) {
  State& s = *state_;
  std::vector<int64_t> addresses;
  for (const auto* tensor : tensors)
    addresses.push_back(static_cast<int64_t>(s.allocator->compositeAddressToDmva(*tensor)));
  auto* callback = flex::createHostCallbackParams(
      [&](void*) {
        deeptools::processComputeOnHostCommandFast(s.fast, *s.hcm, s.pinned.data(), addresses.data(), addresses.size());
      },
      nullptr, false);
  try {
    stream->launchOperationHostCallback(callback);
  } catch (...) {
    flex::destroyHostCallbackParams(callback);
    throw;
  }
  flex::destroyHostCallbackParams(callback);
  const flex::Chunk& whole = s.memory.chunks()[0];
  const flex::LogicalAddress at(whole.addr.region_id, whole.addr.offset + s.sent_at);
  transfer(stream, s.pinned.data(), s.sent, true, flex::CompositeAddress(flex::Chunk(at, s.sent, whole.domain_id)));
  std::memset(s.pinned.data(), 0xEE, s.pinned.size());  // the next launch reuses the buffer at once
  auto* compute = flex::createComputeParams(&s.memory, {}, s.name, s.bootstrap);
  compute->pipeline_barrier = true;
  try {
    stream->launchOperationCompute(compute);
  } catch (...) {
    flex::destroyComputeParams(compute);
    throw;
  }
  flex::destroyComputeParams(compute);
}

// run <folder> <bytes and file of each argument>...: launches once; the files are replaced by what the card holds then.
CASE(run) {
  auto context = start();
  flex::RuntimeStream* stream = context->createStream(flex::RuntimeStreamPriority::NORMAL);
  JobPlan plan(arguments.at(0), *context, context->getDefaultStream());
  std::vector<flex::CompositeAddress> memory;
  std::vector<const flex::CompositeAddress*> tensors;
  std::vector<std::string> contents;
  for (size_t i = 1; i < arguments.size(); i += 2) {
    memory.push_back(context->getAllocator()->allocate(std::stoull(arguments[i]), tensor_memory()));
    contents.push_back(read_text(arguments[i + 1]));
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    tensors.push_back(&memory[i]);
    transfer(stream, contents[i].data(), contents[i].size(), true, memory[i]);
  }
  plan.launch(stream, tensors);
  for (size_t i = 0; i < memory.size(); ++i) {
    transfer(stream, contents[i].data(), contents[i].size(), false, memory[i]);
    write_text(arguments[2 + 2 * i], contents[i]);
  }
  stream->synchronize();
  CHECK(stream->query() && !context->hasStreamError());
}
