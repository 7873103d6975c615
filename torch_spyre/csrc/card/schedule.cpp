// SPDX-License-Identifier: Apache-2.0
#include "schedule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "scalar.h"
#include "team.h"

namespace spyre::card {
namespace {

constexpr size_t kMaxCalls = 40'000;
constexpr int64_t kAloneNs = 8'000;  // work of a phase that one thread does sooner than two would
constexpr int64_t kUnitNs = 2'500;   // work worth claiming
constexpr int64_t kLongNs = 1'000;   // a call that does not gain by being joined to others
constexpr int64_t kCallNs = 100;
constexpr int kUnitsPerThread = 4;  // so that threads end a shared phase at about the same time
constexpr size_t kLeastUnits = 8;
constexpr int64_t kFewRows = 4;  // products of fewer rows are bound by the host's memory

/// One call of one core while the schedule is made.
struct Draft {
  KernelCall call;
  std::vector<Place> places;
  std::vector<View> views;
  std::vector<LayoutMap> layouts;  // by Place::layout
};

/// Rows of a product.
int64_t rows_of(const Instr& i, const Shape& shape) { return shape.extent[shape.rank - 3 - i.taps()]; }

/// Nanoseconds, roughly.
int64_t cost(const Instr& i, const Shape& shape) {
  int64_t points = 1;
  for (int d = 0; d < shape.rank; ++d) points *= shape.extent[d];
  if (i.op != Op::MATMUL) return kCallNs + points / 8;
  return kCallNs + points / (rows_of(i, shape) < kFewRows ? 12 : 40);
}

/// Instructions that one call can do for several cores. The others depend on the order of cores or tell of it in
/// errors.
bool mergeable(Op op) {
  return op == Op::VOP || op == Op::REDUCE || op == Op::MATMUL || op == Op::COPY || op == Op::RINGSUM;
}

bool same_box(const Draft& a, const Draft& b) {
  return a.call.pc == b.call.pc && a.call.shape.rank == b.call.shape.rank &&
         std::equal(a.call.shape.extent, a.call.shape.extent + a.call.shape.rank, b.call.shape.extent);
}

bool same_maps(const Draft& a, const Draft& b) {
  for (size_t k = 0; k < a.views.size(); ++k)
    for (int d = 0; d < a.call.shape.rank; ++d) {
      const DimMap &x = a.views[k].dim[d], &y = b.views[k].dim[d];
      if (x.block != y.block || x.inner != y.inner || x.outer != y.outer) return false;
    }
  for (size_t l = 0; l < a.layouts.size(); ++l)
    for (int d = 0; d < a.call.shape.rank; ++d)
      if (a.layouts[l].stride[d] != b.layouts[l].stride[d] || a.layouts[l].direct[d] != b.layouts[l].direct[d])
        return false;
  return true;
}

/// From draft a to draft b: by how far each operand moves on.
struct Distance {
  std::vector<int64_t> places, layouts;
  bool operator==(const Distance&) const = default;
};

std::optional<Distance> distance(const Draft& a, const Draft& b) {
  if (!same_box(a, b) || a.call.shape.rank == kMaxDims || !same_maps(a, b)) return std::nullopt;
  Distance d;
  for (size_t k = 0; k < a.places.size(); ++k) {
    const Place &p = a.places[k], &q = b.places[k];
    if (p.space != q.space || p.index != q.index) return std::nullopt;
    d.places.push_back(q.offset - p.offset);
  }
  for (size_t l = 0; l < a.layouts.size(); ++l) d.layouts.push_back(b.layouts[l].offset - a.layouts[l].offset);
  const bool writes_apart = d.places[0] != 0 || (!d.layouts.empty() && a.places[0].layout >= 0);
  if (!writes_apart) return std::nullopt;
  return d;
}

/// Puts a new outermost dim in front: `count` repetitions of the draft, each `by` further.
void repeat(Draft& draft, int64_t count, const Distance& by) {
  Shape& shape = draft.call.shape;
  std::copy_backward(shape.extent, shape.extent + shape.rank, shape.extent + shape.rank + 1);
  shape.extent[0] = count;
  for (size_t k = 0; k < draft.views.size(); ++k) {
    DimMap* dim = draft.views[k].dim;
    std::copy_backward(dim, dim + shape.rank, dim + shape.rank + 1);
    dim[0] = {0, by.places[k], 0};
    if (draft.places[k].layout < 0) continue;
    LayoutMap& map = draft.layouts[draft.places[k].layout];
    std::copy_backward(map.stride, map.stride + shape.rank, map.stride + shape.rank + 1);
    std::copy_backward(map.direct, map.direct + shape.rank, map.direct + shape.rank + 1);
    map.stride[0] = by.layouts[draft.places[k].layout];
    map.direct[0] = by.places[k];
  }
  ++shape.rank;
  draft.call.reduced_mask <<= 1;
}

/// Joins runs of evenly spaced drafts of one instruction.
std::vector<Draft> join(std::vector<Draft> drafts) {
  std::vector<Draft> joined;
  for (size_t i = 0; i < drafts.size();) {
    size_t end = i + 1;
    std::optional<Distance> by;
    if (end < drafts.size()) by = distance(drafts[i], drafts[end]);
    while (by && end < drafts.size() && distance(drafts[end - 1], drafts[end]) == by) ++end;
    if (end > i + 1) repeat(drafts[i], static_cast<int64_t>(end - i), *by);
    joined.push_back(std::move(drafts[i]));
    i = end;
  }
  return joined;
}

/// Bytes that an operand without a layout touches, from the first to the last.
struct Range {
  int64_t begin, end;
  int64_t elements;  // different ones
  int64_t bytes() const { return end - begin; }
};

Range range_of(const Shape& shape, const Place& place, const View& view) {
  int64_t first = 0, last = 0, elements = 1;
  for (int d = 0; d < shape.rank; ++d) {
    const DimMap& m = view.dim[d];
    const int64_t n = shape.extent[d];
    if (m.inner == 0 && (m.block == 0 || m.outer == 0)) continue;
    elements *= n;
    const int64_t inner = m.inner * ((m.block ? std::min(m.block, n) : n) - 1);
    const int64_t outer = m.block ? m.outer * ((n - 1) / m.block) : 0;
    first += std::min<int64_t>(inner, 0) + std::min<int64_t>(outer, 0);
    last += std::max<int64_t>(inner, 0) + std::max<int64_t>(outer, 0);
  }
  return {place.offset + first, place.offset + last + format_bytes(view.format), elements};
}

/// What a call reads of its second operand, if that is dense memory of an argument.
std::optional<Schedule::Weight> weight_of(const KernelCall& call, const Place& place, const View& view) {
  if (place.space != Space::MEM || place.layout >= 0) return std::nullopt;
  const Range range = range_of(call.shape, place, view);
  if (range.bytes() > 2 * range.elements * format_bytes(view.format)) return std::nullopt;
  return Schedule::Weight{place.index, range.begin, range.bytes()};
}

/// Whether two products of a core may change places: both write to scratchpads, where the other has no operand.
bool independent(const Draft& a, const Draft& b) {
  auto apart = [](const Draft& writer, const Draft& other) {
    if (writer.places[0].space != Space::LX || writer.places[0].layout >= 0) return false;
    const Range written = range_of(writer.call.shape, writer.places[0], writer.views[0]);
    for (size_t k = 0; k < other.places.size(); ++k) {
      if (other.places[k].space != Space::LX) continue;
      const Range used = range_of(other.call.shape, other.places[k], other.views[k]);
      if (other.places[k].layout >= 0 || (used.begin < written.end && written.begin < used.end)) return false;
    }
    return true;
  };
  return apart(a, b) && apart(b, a);
}

class Scheduler {
 public:
  Scheduler(const Image& image, std::span<const int64_t> int_scalars)
      : image_(image), cores_(image.cores), drafts_(image.cores) {
    for (uint32_t c = 0; c < image.cores; ++c) cores_[c].reset(image, static_cast<int>(c), int_scalars);
  }

  std::unique_ptr<const Schedule> run() {
    auto schedule = std::make_unique<Schedule>();
    for (out_ = schedule.get();; ++phase_) {
      if (!draft_phase()) return nullptr;
      add_phase();
      if (image_.instrs[cores_[0].pc].op == Op::END) break;
      for (CoreState& core : cores_) ++core.pc;
    }
    for (Schedule::Stage& stage : schedule->stages) add_weights(stage);
    return schedule;
  }

 private:
  /// Collects what each core does up to the next BARRIER or END. False if it is too much.
  bool draft_phase() {
    FastArith arith;
    for (CoreState& core : cores_) {
      std::vector<Draft>& list = drafts_[core.core];
      list.clear();
      for (const Instr* i = &advance(image_, core, arith); i->tile(); i = &advance(image_, core, arith)) {
        Draft draft;
        if (resolve_shape(image_, *i, core, arith, draft.call.shape)) {
          if (++n_drafts_ > kMaxCalls) return false;
          resolve(*i, core, draft);
          list.push_back(std::move(draft));
        }
        ++core.pc;
      }
    }
    return true;
  }

  void resolve(const Instr& i, const CoreState& core, Draft& draft) {
    FastArith arith;
    draft.call.pc = core.pc;
    draft.call.phase = phase_;
    draft.call.core = core.core;
    draft.call.reduced_mask = i.reduced_mask;
    if (i.op == Op::IOTA) draft.call.start = evaluate(image_, i.a, core, arith);
    auto operands = image_.operands_of(i);
    if (i.op == Op::RINGSUM) {
      resolve_operand(operands[0], core, i.rank, draft, core.core);
      int64_t owner = evaluate(image_, i.a, core, arith);
      for (uint32_t k = 0; k < i.ring_cores; ++k, owner += i.step)
        resolve_operand(operands[1], core, i.rank, draft, owner);
      return;
    }
    for (const Operand& o : operands)
      resolve_operand(o, core, i.rank, draft,
                      o.space == Space::LX_REMOTE ? evaluate(image_, o.core, core, arith) : core.core);
  }

  void resolve_operand(const Operand& o, const CoreState& core, int rank, Draft& draft, int64_t owner) {
    FastArith arith;
    Place place{o.space, o.index, -1, 0};
    View view;
    view.format = o.format;
    if (!o.addressed()) {
      place.offset = o.space == Space::IMM ? static_cast<int64_t>(reinterpret_cast<intptr_t>(&o.bits)) : 0;
    } else {
      place.offset = evaluate(image_, o.offset, core, arith);
      if (o.space == Space::LX || o.space == Space::LX_REMOTE) {
        place.space = Space::LX;
        place.offset += owner * kLxPitch;
      }
      if (o.layout >= 0) {
        place.layout = static_cast<int32_t>(draft.layouts.size());
        draft.layouts.push_back(image_.layouts[o.layout].map);
        draft.layouts.back().offset = evaluate(image_, image_.layouts[o.layout].offset, core, arith);
      } else {
        std::copy_n(image_.maps.data() + o.first_map, rank, view.dim);
      }
    }
    draft.places.push_back(place);
    draft.views.push_back(view);
  }

  /// What a core does before its first and after its last long call goes to parts of their own, if one thread does
  /// that for all cores at once: calls join there.
  void add_phase() {
    Part all, head, middle, tail;
    for (const std::vector<Draft>& list : drafts_) {
      auto is_long = [&](const Draft& d) { return ns(d) >= kLongNs; };
      const auto first = std::find_if(list.begin(), list.end(), is_long);
      const auto end = first == list.end() ? first : std::find_if(list.rbegin(), list.rend(), is_long).base();
      const auto n = static_cast<size_t>(list.size());
      const auto from = static_cast<size_t>(first - list.begin()), to = static_cast<size_t>(end - list.begin());
      const bool none = first == list.end();
      all.push_back({0, n});
      head.push_back({0, none ? 0 : from});
      middle.push_back({none ? 0 : from, to});
      tail.push_back({to, n});
    }
    if (together_ns(all) < kAloneNs) return add_alone(all);
    for (Part* part : {&head, &tail}) {
      if (together_ns(*part) < kAloneNs) continue;
      for (size_t c = 0; c < part->size(); ++c) {
        if ((*part)[c].first == (*part)[c].second) continue;
        middle[c] = {std::min(middle[c].first, (*part)[c].first), std::max(middle[c].second, (*part)[c].second)};
      }
      part->clear();
    }
    add_alone(head);
    add_shared(middle);
    add_alone(tail);
  }

  using Part = std::vector<std::pair<size_t, size_t>>;  // by core, a range of its drafts
  using Cores = std::vector<size_t>;

  int64_t ns(const Draft& d) const { return cost(image_.instrs[d.call.pc], d.call.shape); }

  int64_t part_ns(const Part& part, size_t c) const {
    int64_t sum = 0;
    for (size_t i = part[c].first; i < part[c].second; ++i) sum += ns(drafts_[c][i]);
    return sum;
  }

  bool is_product(const Draft& d) const { return image_.instrs[d.call.pc].op == Op::MATMUL; }

  /// Units of cores whose longest product has the same second operand, which a joined call decodes only once. None if
  /// there are too few cores for threads to share them then.
  std::vector<Cores> sharing_cores(const Part& part) const {
    std::map<std::tuple<Space, uint16_t, int64_t>, Cores> by_operand;
    size_t busy = 0;
    for (size_t c = 0; c < part.size(); ++c) {
      const Draft* longest = nullptr;
      for (size_t i = part[c].first; i < part[c].second; ++i) {
        const Draft& d = drafts_[c][i];
        if (is_product(d) && (!longest || ns(d) > ns(*longest))) longest = &d;
      }
      if (part[c].first == part[c].second) continue;
      if (!longest || ns(*longest) < kUnitNs) return {};
      const Place& b = longest->places[2];
      by_operand[{b.space, b.index, b.offset}].push_back(c);
      ++busy;
    }
    const size_t units = std::max(kLeastUnits, static_cast<size_t>(kUnitsPerThread * Team::instance().threads()));
    const size_t per_unit = busy / units;
    if (per_unit < 2) return {};
    std::vector<Cores> found;
    for (const auto& [operand, cores] : by_operand) {
      const size_t parts = std::max<size_t>(cores.size() / per_unit, 1);  // even ones: a short one leaves a thread idle
      for (size_t i = 0; i < parts; ++i)
        found.emplace_back(cores.begin() + i * cores.size() / parts, cores.begin() + (i + 1) * cores.size() / parts);
    }
    return dealt(found);
  }

  /// The units such that both halves of them, which threads claim from the front, hold as much work if it grows from
  /// unit to unit, and begin with the most: later cores hold later rows, and a causal mask leaves more of those.
  static std::vector<Cores> dealt(const std::vector<Cores>& units) {
    std::vector<Cores> half[2];
    for (size_t i = 0; i < units.size(); ++i) half[(i + 1) / 2 % 2].push_back(units[units.size() - 1 - i]);
    if (half[0].size() > half[1].size()) std::swap(half[0], half[1]);  // the second half is the larger one
    half[0].insert(half[0].end(), half[1].begin(), half[1].end());
    return half[0];
  }

  /// Time of a part on one thread, with one call per instruction where calls join.
  int64_t together_ns(const Part& part) const {
    int64_t sum = 0;
    std::vector<uint32_t> seen;
    for (size_t c = 0; c < part.size(); ++c) {
      for (size_t i = part[c].first; i < part[c].second; ++i) {
        const Draft& d = drafts_[c][i];
        sum += ns(d);
        if (!mergeable(image_.instrs[d.call.pc].op)) continue;
        if (std::find(seen.begin(), seen.end(), d.call.pc) != seen.end()) sum -= kCallNs;
        seen.push_back(d.call.pc);
      }
    }
    return sum;
  }

  /// Cuts a part into units of whole cores, or of single products.
  void add_shared(const Part& part) {
    const auto first = static_cast<uint32_t>(out_->units.size());
    const bool streams = streams_weights(part);
    if (streams) add_streams(part);
    const std::vector<Cores> sharing = streams ? std::vector<Cores>() : sharing_cores(part);
    for (const Cores& cores : sharing) add_products_together(part, cores);
    for (size_t c = 0; c < part.size() && sharing.empty() && !streams;) {
      Cores cores;
      for (int64_t sum = 0; c < part.size() && sum < kUnitNs; ++c)
        if (part_ns(part, c) > 0) sum += part_ns(part, cores.emplace_back(c));
      if (!cores.empty()) add_unit(part, cores);
    }
    const auto end = static_cast<uint32_t>(out_->units.size());
    if (end == first) return;
    out_->stages.push_back({first, end});
    out_->shared |= end - first > 1;
  }

  /// Whether the part is nothing but products of few rows, which read their second operand once: then the host's memory
  /// bounds it, and not the order of the products.
  bool streams_weights(const Part& part) const {
    int products = 0;
    for (size_t c = 0; c < part.size(); ++c) {
      for (size_t i = part[c].first; i < part[c].second; ++i, ++products) {
        const Draft& d = drafts_[c][i];
        if (!is_product(d) || rows_of(image_.instrs[d.call.pc], d.call.shape) >= kFewRows) return false;
        if (!weight_of(d.call, d.places[2], d.views[2])) return false;
        for (size_t j = part[c].first; j < i; ++j)
          if (!independent(d, drafts_[c][j])) return false;
      }
    }
    return products > 1 && products <= kMaxUnits;
  }

  /// One unit per second operand, in the order of memory: a thread then reads one long run of it. Products of other
  /// rows with the same one join, so that it is read and decoded once.
  void add_streams(const Part& part) {
    std::vector<Draft*> products;
    for (size_t c = 0; c < part.size(); ++c)
      for (size_t i = part[c].first; i < part[c].second; ++i) products.push_back(&drafts_[c][i]);
    auto place = [](const Draft* d) { return std::pair(d->places[2].index, d->places[2].offset); };
    std::stable_sort(products.begin(), products.end(), [&](auto* a, auto* b) { return place(a) < place(b); });
    for (size_t i = 0, end; i < products.size(); i = end) {
      std::vector<Draft> group;
      const auto shared = place(products[i]);
      for (end = i; end < products.size() && place(products[end]) == shared; ++end)
        group.push_back(std::move(*products[end]));
      const auto begin = static_cast<uint32_t>(out_->calls.size());
      for (Draft& d : join(join(std::move(group)))) add_call(d);
      out_->units.push_back({begin, static_cast<uint32_t>(out_->calls.size())});
    }
  }

  /// One unit; it joins the one before if that was alone as well.
  void add_alone(const Part& part) {
    if (std::all_of(part.begin(), part.end(), [](auto range) { return range.first == range.second; })) return;
    const bool joins = !out_->stages.empty() && out_->stages.back().units() == 1;
    if (!joins) out_->stages.push_back({static_cast<uint32_t>(out_->units.size()), 0});
    Cores all(part.size());
    std::iota(all.begin(), all.end(), 0);
    add_unit(part, all);
    if (joins) {
      const uint32_t end = out_->units.back().end_call;
      out_->units.pop_back();
      out_->units.back().end_call = end;
    }
    out_->stages.back().end_unit = static_cast<uint32_t>(out_->units.size());
  }

  /// All that these cores do in this part. Each core keeps its order; cores at the same instruction go together.
  void add_unit(Part part, const Cores& cores) {
    const auto begin = static_cast<uint32_t>(out_->calls.size());
    while (add_next(part, cores)) {
    }
    out_->units.push_back({begin, static_cast<uint32_t>(out_->calls.size())});
  }

  /// The same for long work: core after core, as what one core handles is in the host's cache; only products wait for
  /// those of the other cores.
  void add_products_together(Part part, const Cores& cores) {
    const auto begin = static_cast<uint32_t>(out_->calls.size());
    do {
      for (size_t c : cores)
        for (auto& [at, end] = part[c]; at < end && !is_product(drafts_[c][at]); ++at) add_call(drafts_[c][at]);
    } while (add_next(part, cores));
    out_->units.push_back({begin, static_cast<uint32_t>(out_->calls.size())});
  }

  /// Moves the cores that are at the earliest instruction on by one. False if all are done.
  bool add_next(Part& part, const Cores& cores) {
    uint32_t pc = UINT32_MAX;
    for (size_t c : cores)
      if (part[c].first < part[c].second) pc = std::min(pc, drafts_[c][part[c].first].call.pc);
    if (pc == UINT32_MAX) return false;
    std::vector<Draft> group;
    for (size_t c : cores) {
      auto& [at, end] = part[c];
      if (at < end && drafts_[c][at].call.pc == pc) group.push_back(std::move(drafts_[c][at++]));
    }
    if (mergeable(image_.instrs[pc].op)) group = join(join(std::move(group)));
    for (Draft& d : group) add_call(d);
    return true;
  }

  void add_call(Draft& d) {
    d.call.first_operand = static_cast<uint32_t>(out_->places.size());
    d.call.n_operands = static_cast<uint32_t>(d.places.size());
    for (Place p : d.places) {
      if (p.layout >= 0) p.layout += static_cast<int32_t>(out_->layouts.size());
      out_->places.push_back(p);
    }
    out_->views.insert(out_->views.end(), d.views.begin(), d.views.end());
    out_->layouts.insert(out_->layouts.end(), d.layouts.begin(), d.layouts.end());
    out_->calls.push_back(d.call);
  }

  /// Neighbours become one; the order stays that of the units, which are claimed from the first on.
  void add_weights(Schedule::Stage& stage) {
    std::vector<Schedule::Weight>& all = out_->weights;
    stage.first_weight = static_cast<uint32_t>(all.size());
    const uint32_t begin = out_->units[stage.first_unit].first_call, end = out_->units[stage.end_unit - 1].end_call;
    for (uint32_t c = begin; c < end && stage.units() > 1; ++c) {
      const KernelCall& call = out_->calls[c];
      if (image_.instrs[call.pc].op != Op::MATMUL) continue;
      const auto weight = weight_of(call, out_->places[call.first_operand + 2], out_->views[call.first_operand + 2]);
      if (!weight) continue;
      const bool first = all.size() == stage.first_weight;
      if (!first && all.back().arg == weight->arg && all.back().offset + all.back().bytes == weight->offset)
        all.back().bytes += weight->bytes;
      else
        all.push_back(*weight);
    }
    stage.end_weight = static_cast<uint32_t>(all.size());
  }

  const Image& image_;
  std::vector<CoreState> cores_;
  std::vector<std::vector<Draft>> drafts_;  // of the present phase, by core
  uint32_t phase_ = 0;
  size_t n_drafts_ = 0;
  Schedule* out_ = nullptr;
};

}  // namespace

std::unique_ptr<const Schedule> make_schedule(const Image& image, std::span<const int64_t> int_scalars) {
  return Scheduler(image, int_scalars).run();
}

const Schedule* ScheduleSlot::get(const Image& image, std::span<const Scalar> scalars) {
  std::lock_guard lock(mutex_);
  if (launches_ < 2 && ++launches_ == 2) {
    std::vector<int64_t> ints;
    for (size_t s = 0; s < scalars.size(); ++s)
      if (!image.scalar_is_float[s]) ints.push_back(scalars[s].i);
    schedule_ = make_schedule(image, ints);
  }
  return schedule_.get();
}

}  // namespace spyre::card
