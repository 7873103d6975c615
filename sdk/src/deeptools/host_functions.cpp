// SPDX-License-Identifier: Apache-2.0
// The host side of a launch: addresses of its tensors into the buffer that a job reads them from.
#include <charconv>
#include <cstring>
#include <stdexcept>

#include "deeptools/json.h"
#include "spyre/card.h"
#include "spyrecode-host-functions/fast_process_hcm.h"
#include "spyrecode-host-functions/processSpyreCodeArtifacts.h"
#include "spyrecode-host-functions/sendataconvert/sen_data_convert.h"
#include "spyrecode-host-functions/spyrecode.h"
#include "util/sendefs/sendefs.h"

namespace {

using spyre::sdk::Json;

constexpr uint64_t kMostAddresses = 1 << 16;

[[noreturn]] void bad(const std::string& message) { throw std::invalid_argument("hcm: " + message); }

/// A whole number, written as such or as a decimal string.
template <class Number>
Number whole(const Json* value, const std::string& what) {
  Number number{};
  const bool written = value && (value->is(Json::Kind::number) || value->is(Json::Kind::string));
  const char* begin = written ? value->text.data() : nullptr;
  const char* end = written ? begin + value->text.size() : nullptr;
  if (!written) bad(what + " is no whole number");
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end || begin == end) bad(what + " is '" + value->text + "', no whole number");
  return number;
}

std::vector<uint64_t> conversions_of(const Json& hcm) {
  const Json* vdci = hcm.find("vdci");
  if (!vdci || !vdci->is(Json::Kind::object)) bad("the vdci field must be an object");
  std::vector<uint64_t> found;
  for (const auto& [name, entry] : vdci->members) {
    const uint64_t count = whole<uint64_t>(entry.find("count"), "count of vdci field '" + name + "'");
    if (count > kMostAddresses) bad("vdci field '" + name + "' has " + std::to_string(count) + " addresses");
    found.push_back(count);
  }
  return found;
}

std::vector<int64_t> constants_of(const Json& hcm) {
  const Json* constants = hcm.find("senConstants");
  std::vector<int64_t> found;
  if (!constants) return found;
  if (!constants->is(Json::Kind::array)) bad("the senConstants field must be an array");
  for (const Json& item : constants->items) found.push_back(whole<int64_t>(&item, "an item of senConstants"));
  return found;
}

uint64_t only_conversion(const Hcm& hcm) {
  if (hcm.conversions().size() != 1)
    throw std::runtime_error("Expect one DCI, the hcm has " + std::to_string(hcm.conversions().size()));
  return hcm.conversions().front();
}

void put_constants(const Hcm& hcm, void* out, uint64_t addresses) {
  const std::vector<int64_t>& constants = hcm.constants();
  if (!constants.empty()) std::memcpy(static_cast<char*>(out) + addresses * 8, constants.data(), constants.size() * 8);
}

void check_count(uint64_t wanted, size_t given) {
  if (wanted != given)
    throw std::invalid_argument("Number of inputs mismatches: the job takes " + std::to_string(wanted) +
                                " tensors, the launch passes " + std::to_string(given));
}

}  // namespace

void Hcm::importJsonStr(const std::string& text) {
  const Json hcm = spyre::sdk::parse_json(text);
  if (!hcm.is(Json::Kind::object)) bad("it must be an object");
  std::vector<uint64_t> conversions = conversions_of(hcm);
  constants_ = constants_of(hcm);
  conversions_ = std::move(conversions);
}

namespace deeptools {

uint32_t FloatToFp16Bin(float value) {
  return spyre::card::encode(value, static_cast<int>(DataFormats::SEN169_FP16)) & 0xFFFF;
}

void processComputeOnHostCommand(Hcm& hcm, void* out, const void* in) {
  const uint64_t count = only_conversion(hcm);
  if (in)
    std::memcpy(out, in, count * 8);
  else
    std::memset(out, 0, count * 8);
  put_constants(hcm, out, count);
}

bool buildFastHcmPatchPlan(FastHcmPatchPlan& plan, const Hcm& hcm) {
  plan = {};
  if (hcm.conversions().size() != 1 || !hcm.constants().empty()) return false;
  plan.num_input_symbols = static_cast<uint32_t>(hcm.conversions().front());
  plan.output_size = plan.num_input_symbols * 8;
  for (uint32_t i = 0; i < plan.num_input_symbols; ++i) plan.patches.push_back({i, i * 8});
  plan.valid = true;
  return true;
}

bool processComputeOnHostCommandFast(FastHcmPatchPlan& plan, Hcm& hcm, void* out, const int64_t* addresses, size_t n) {
  check_count(plan.valid ? plan.num_input_symbols : only_conversion(hcm), n);
  if (!plan.valid) {
    processComputeOnHostCommand(hcm, out, addresses);
    return false;
  }
  for (const FastHcmPatchPlan::Patch& patch : plan.patches)
    std::memcpy(static_cast<char*>(out) + patch.output_offset, addresses + patch.input, 8);
  return true;
}

}  // namespace deeptools
