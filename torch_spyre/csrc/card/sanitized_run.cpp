// SPDX-License-Identifier: Apache-2.0
// A launch under the sanitizer: one core after the other, and around every tile instruction a look at the bytes that it
// really touches (for gathers and scatters those that the index values name). What the proof at load has excluded
// (bounds, scratchpad bytes that nobody wrote, remote reads in the phase of the write) is not looked for again.
#include <algorithm>
#include <cstring>
#include <set>

#include "access.h"
#include "exec.h"
#include "health.h"
#include "program_job.h"
#include "races.h"
#include "sanitize.h"

namespace spyre::card {
namespace {

constexpr uint16_t kPoison = 0x7FFF;  // NaN in SEN169_FP16 and, twice, in IEEE_FP32

/// Scratchpad of one core: the output (see output_id) that wrote each byte last; 0: none.
using LxShadow = std::vector<uint32_t>;

/// A number for output k of an instruction. At most two outputs exist.
uint32_t output_id(uint32_t pc, size_t k) { return 2 * pc + static_cast<uint32_t>(k) + 1; }
uint32_t pc_of(uint32_t id) { return (id - 1) / 2; }
uint32_t output_of(uint32_t id) { return (id - 1) % 2; }

/// A stretch of bytes of an operand.
struct Stretch {
  Space space;
  int owner;         // core whose LX it is
  uint64_t address;  // card address, or offset in LX or in the constants
  const std::byte* p;
  int64_t bytes;
};

int64_t mapped(const DimMap& m, int64_t v) {
  return m.block == 0 ? v * m.inner : (v % m.block) * m.inner + (v / m.block) * m.outer;
}

template <class T>
int64_t load_as(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

int64_t index_value(Format f, const std::byte* p) {
  if (f == Format::SENINT8) return load_as<int8_t>(p);
  if (f == Format::SENINT16) return load_as<int16_t>(p);
  return f == Format::SENUINT32 ? load_as<uint32_t>(p) : load_as<int32_t>(p);
}

/// Formats in which a program may take the same bits: equal ones, and 32-bit words (sign and exponent tricks).
bool same_bits_family(Format a, Format b) { return a == b || (format_bytes(a) == 4 && format_bytes(b) == 4); }

/// A scalar beyond the range of the card's 16-bit format stands for an infinity (the start of a maximum).
bool stands_for_infinity(Format f, const std::byte* p) {
  if (f != Format::IEEE_FP32) return false;
  float value;
  std::memcpy(&value, p, 4);
  return std::fabs(value) > 8.5e9f;
}

class SanitizedRun {
 public:
  SanitizedRun(const Launch& launch, std::byte* lx, std::vector<CoreState>& cores)
      : launch_(launch), image_(*launch.image), job_(launch, lx, cores), lx_(image_.cores) {
    for (uint32_t c = 0; c < image_.cores; ++c) {
      for (uint32_t at = 0; at + 1 < image_.lx_bytes; at += 2) std::memcpy(job_.lx_of(c) + at, &kPoison, 2);
      lx_[c].assign(image_.lx_bytes, 0);
    }
    lx_written_.assign(image_.instrs.size(), -1);
    lx_read_.assign(image_.instrs.size(), 0);
  }

  void run() {
    do {
      for (uint32_t c = 0; c < image_.cores && !job_.failure(); ++c) run_core(static_cast<int>(c));
      accesses_.end_phase([&](const MemoryAccess& a, const MemoryAccess& b) { report_race(a, b); });
    } while (job_.next_phase() != 0);
    if (const auto& failure = job_.failure())
      add_report(make_report(failure->kind, image_, failure->pc, failure->core, failure->message));
    job_.throw_failure();
    report_dead_writes();
    if (!error_.kind.empty() && sanitize_mode() == Sanitize::raise) throw Error(error_.kind, error_.message);
  }

 private:
  void run_core(int c) {
    CoreState& core = job_.core(c);
    FastArith arith;
    for (const Instr* i = &advance(image_, core, arith); i->tile(); i = &advance(image_, core, arith)) {
      Shape shape;
      if (resolve_shape(image_, *i, core, arith, shape)) run_tile(core, *i, shape);
      if (job_.failure()) return;
      ++core.pc;
    }
  }

  void run_tile(const CoreState& core, const Instr& i, Shape shape) {
    Health before, after;
    size_t n = image_.operands_of(i).size();
    for (size_t k = i.n_outputs; k < n; ++k)
      visit(core, i, k, shape, [&](const Stretch& s) { read(core, i, k, s, before); });
    if (i.accumulates()) visit(core, i, 0, shape, [&](const Stretch& s) { read(core, i, 0, s, before); });
    // Where a scatter writes has to be known before it may overwrite its own indices.
    std::vector<Stretch> stretches[2];
    if (i.op == Op::SORT) shape.extent[i.dim] = i.step;
    for (size_t k = 0; k < i.n_outputs; ++k)
      visit(core, i, k, shape, [&](const Stretch& s) { stretches[k].push_back(s); });
    job_.run_tile(core, i);
    if (job_.failure()) return;
    for (size_t k = 0; k < i.n_outputs; ++k)
      for (const Stretch& s : stretches[k]) write(core, i, k, s, after);
    judge(core, i, before, after);
  }

  // -- where an operand lies -------------------------------------------------------------------------------------

  template <class Fn>
  void visit(const CoreState& core, const Instr& i, size_t k, const Shape& shape, const Fn& fn) {
    const Operand& o = image_.operands_of(i)[k];
    LayoutMap layout;
    View view = job_.resolve(o, core, i.rank, &layout);
    if (!o.addressed()) return fn(Stretch{o.space, 0, 0, view.base, format_bytes(o.format)});
    FastArith arith;
    if (i.op == Op::RINGSUM && k == 1) {
      int64_t owner = evaluate(image_, i.a, core, arith);
      int64_t offset = evaluate(image_, o.offset, core, arith);
      for (uint32_t r = 0; r < i.ring_cores; ++r, owner += i.step) {
        view.base = job_.lx_of(owner) + offset;
        visit_boxes(o, view, static_cast<int>(owner), shape, fn);
      }
      return;
    }
    int owner = o.space == Space::LX_REMOTE ? static_cast<int>(evaluate(image_, o.core, core, arith)) : core.core;
    if (i.indexed() && static_cast<int>(k) == i.table_operand()) return visit_table(core, i, o, view, shape, fn);
    if (view.layout) {
      Runs<Fn> runs{*this, o, owner, fn};
      for_each_point(layout, shape, [&](int64_t at) { runs.add(view.base + at, format_bytes(o.format)); });
      return runs.flush();
    }
    visit_boxes(o, view, owner, shape, fn);
  }

  template <class Fn>
  void visit_boxes(const Operand& o, const View& view, int owner, const Shape& shape, const Fn& fn) {
    std::vector<Box> boxes;
    make_boxes({shape.extent, static_cast<size_t>(shape.rank)}, view.dim, format_bytes(o.format), boxes);
    for (const Box& box : boxes)
      for_each_run(box, static_cast<int64_t>(box.begin),
                   [&](int64_t begin, int64_t end) { fn(stretch(o, owner, view.base + begin, end - begin)); });
  }

  /// The table entries that the index values name; values out of range name none.
  template <class Fn>
  void visit_table(const CoreState& core, const Instr& i, const Operand& o, const View& view, const Shape& shape,
                   const Fn& fn) {
    View index[kMaxIndices];
    LayoutMap unused;
    int n = i.n_indices();
    for (int k = 0; k < n; ++k) index[k] = job_.resolve(image_.operands_of(i)[2 + k], core, i.rank, &unused);
    Runs<Fn> runs{*this, o, core.core, fn};
    int64_t v[kMaxDims] = {};
    for (;;) {
      int64_t at = 0;
      bool inside = true;
      for (int d = 0; d < shape.rank; ++d) at += mapped(view.dim[d], v[d]);
      for (int k = 0; k < n && inside; ++k) {
        int64_t where = 0;
        for (int d = 0; d < shape.rank; ++d) where += mapped(index[k].dim[d], v[d]);
        int64_t value = index_value(index[k].format, index[k].base + where);
        const Index& table = image_.indices[i.first_index + k];
        inside = value >= 0 && value < table.limit;
        if (inside) at += mapped(table.along, value);
      }
      if (inside) runs.add(view.base + at, format_bytes(o.format));
      int d = shape.rank - 1;
      for (; d >= 0 && ++v[d] == shape.extent[d]; --d) v[d] = 0;
      if (d < 0) return runs.flush();
    }
  }

  /// Joins elements that follow one another.
  template <class Fn>
  struct Runs {
    SanitizedRun& run;
    const Operand& operand;
    int owner;
    const Fn& fn;
    const std::byte* begin = nullptr;
    int64_t bytes = 0;

    void add(const std::byte* p, int64_t size) {
      if (begin && begin + bytes == p) {
        bytes += size;
        return;
      }
      flush();
      begin = p;
      bytes = size;
    }
    void flush() {
      if (begin) fn(run.stretch(operand, owner, begin, bytes));
      begin = nullptr;
    }
  };

  Stretch stretch(const Operand& o, int owner, const std::byte* p, int64_t bytes) const {
    const std::byte* origin = o.space == Space::MEM     ? launch_.memory
                              : o.space == Space::CONST ? image_.constants.data()
                                                        : job_.lx_of(owner);
    return {o.space, owner, static_cast<uint64_t>(p - origin), p, bytes};
  }

  // -- what happens to the bytes ---------------------------------------------------------------------------------

  void read(const CoreState& core, const Instr& i, size_t k, const Stretch& s, Health& health) {
    Format format = image_.operands_of(i)[k].format;
    scan_run(format, s.p, s.bytes, s.address, health);
    if (!image_.operands_of(i)[k].addressed() && stands_for_infinity(format, s.p)) health.found_saturated(0);
    if (s.space == Space::MEM) {
      touch_memory(core, s, false);
      auto [begin, end] = launch_.shadow->unwritten(s.address, s.address + static_cast<uint64_t>(s.bytes));
      if (end > begin) report_unwritten(core, k, static_cast<uint64_t>(begin), static_cast<uint64_t>(end));
    }
    if (s.space == Space::LX || s.space == Space::LX_REMOTE) read_lx(core, s, format);
  }

  void write(const CoreState& core, const Instr& i, size_t k, const Stretch& s, Health& health) {
    Format format = image_.operands_of(i)[k].format;
    scan_run(format, s.p, s.bytes, s.address, health);
    if (s.space == Space::MEM) {
      touch_memory(core, s, true);
      launch_.shadow->written(s.address, s.address + static_cast<uint64_t>(s.bytes));
      return;
    }
    std::fill_n(lx_[core.core].begin() + static_cast<int64_t>(s.address), s.bytes, output_id(core.pc, k));
    lx_written_[core.pc] = core.core;
  }

  void touch_memory(const CoreState& core, const Stretch& s, bool write) {
    if (image_.cores > 1)
      accesses_.add(
          {s.address, s.address + static_cast<uint64_t>(s.bytes), core.pc, static_cast<uint8_t>(core.core), write});
  }

  void read_lx(const CoreState& core, const Stretch& s, Format format) {
    const LxShadow& lx = lx_[s.owner];
    const uint64_t step = static_cast<uint64_t>(format_bytes(format));
    uint32_t last = 0;
    for (uint64_t at = s.address; at < s.address + static_cast<uint64_t>(s.bytes); at += step) {
      if (lx[at] == last) continue;
      last = lx[at];
      if (last == 0) continue;
      lx_read_[pc_of(last)] = 1;
      Format stored = image_.operands_of(image_.instrs[pc_of(last)])[output_of(last)].format;
      if (!same_bits_family(stored, format)) report_format(core, s, at, format, stored, pc_of(last));
    }
  }

  /// NaN and saturation are reported where they come up, not where they spread.
  void judge(const CoreState& core, const Instr& i, const Health& before, const Health& after) {
    const Operand& out = image_.operands_of(i)[0];
    std::string place = out.space == Space::MEM ? "memory" : "LX";
    if (after.nan && !before.nan)
      warn("NanProduced", core, place, after.nan_at, out.format,
           "produces a NaN (" + place + " byte " + std::to_string(after.nan_at) + ") from inputs without one");
    if (after.saturated && !before.saturated && !before.nan)
      warn("Saturated", core, place, after.saturated_at, out.format,
           "produces an infinite or saturated value (" + place + " byte " + std::to_string(after.saturated_at) +
               ") from inputs without one; the result exceeds " + format_name(out.format));
  }

  // -- reports ---------------------------------------------------------------------------------------------------

  bool first(const char* kind, uint32_t pc, uint32_t other = 0) { return seen_.emplace(kind, pc, other).second; }

  void warn(const char* kind, const CoreState& core, const std::string& space, uint64_t at, Format format,
            const std::string& message) {
    if (!first(kind, core.pc)) return;
    SanitizerReport r = make_report(kind, image_, core.pc, core.core, message);
    r.warning = true;
    add(r, space, at, at + static_cast<uint64_t>(format_bytes(format)));
  }

  void add(SanitizerReport& r, const std::string& space, uint64_t begin, uint64_t end) {
    r.space = space;
    r.begin = begin;
    r.end = end;
    add_report(r);
    if (!r.warning && error_.kind.empty()) error_ = r;
  }

  void report_race(const MemoryAccess& a, const MemoryAccess& b) {
    if (!first("RaceDetected", a.pc, b.pc)) return;
    uint64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
    SanitizerReport r = make_report(
        "RaceDetected", image_, a.pc, a.core,
        std::string(a.write ? "writes " : "reads ") + where(begin, end) + ", which core " + std::to_string(b.core) +
            (b.write ? " writes" : " reads") + " in the same phase (instruction " + std::to_string(b.pc) + ", " +
            op_name(image_.instrs[b.pc].op) + "); give each byte one core or put a BARRIER between");
    add(r, "memory", begin, end);
  }

  void report_unwritten(const CoreState& core, size_t k, uint64_t begin, uint64_t end) {
    if (!first("UninitializedRead", core.pc, static_cast<uint32_t>(k))) return;
    SanitizerReport r = make_report("UninitializedRead", image_, core.pc, core.core,
                                    "reads " + where(begin, end) + ", which nothing wrote since it was allocated");
    add(r, "memory", begin, end);
  }

  void report_format(const CoreState& core, const Stretch& s, uint64_t at, Format format, Format stored,
                     uint32_t writer) {
    warn("FormatMismatch", core, "LX", at, format,
         "reads LX byte " + std::to_string(at) + " of core " + std::to_string(s.owner) + " as " + format_name(format) +
             ", but instruction " + std::to_string(writer) + " wrote " + format_name(stored) +
             " there; is the LX address the right one?");
  }

  /// An instruction whose scratchpad results nobody ever reads: often its address, or that of a reader, is wrong.
  void report_dead_writes() {
    for (uint32_t pc = 0; pc < lx_written_.size(); ++pc) {
      if (lx_written_[pc] < 0 || lx_read_[pc]) continue;
      SanitizerReport r = make_report("DeadWrite", image_, pc, lx_written_[pc],
                                      "writes to LX what no instruction reads; is the LX address the right one?");
      r.warning = true;
      add(r, "LX", 0, 0);
    }
  }

  /// "memory bytes [a, b) (argument 1, from byte 256)".
  std::string where(uint64_t begin, uint64_t end) const {
    std::string text = "memory bytes [" + std::to_string(begin) + ", " + std::to_string(end) + ")";
    for (size_t a = 0; a < image_.args.size(); ++a) {
      uint64_t first = static_cast<uint64_t>(launch_.args[a] - launch_.memory);
      if (begin >= first && begin < first + image_.args[a].bytes)
        return text + " (argument " + std::to_string(a) + " from byte " + std::to_string(begin - first) + ")";
    }
    return text;
  }

  const Launch& launch_;
  const Image& image_;
  ProgramJob job_;
  std::vector<LxShadow> lx_;
  std::vector<int> lx_written_;   // by instruction: a core on which it wrote to LX, or -1
  std::vector<uint8_t> lx_read_;  // ... whether something read that
  PhaseAccesses accesses_;
  std::set<std::tuple<std::string, uint32_t, uint32_t>> seen_;
  SanitizerReport error_;  // the first one that is no warning
};

}  // namespace

void Executor::run_sanitized(const Launch& launch) { SanitizedRun(launch, lx_, cores_).run(); }

}  // namespace spyre::card
