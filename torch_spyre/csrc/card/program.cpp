// SPDX-License-Identifier: Apache-2.0
// Decoder. Input is untrusted: every count is checked against the bytes that are left before anything is allocated.
#include "program.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "binary_reader.h"

namespace spyre::card {
namespace {

constexpr uint16_t kVersion = 3;
constexpr int64_t kMaxStride = int64_t{1} << 40;  // bytes; keeps products of strides and extents far from overflow
constexpr size_t kMaxNesting = 64;
constexpr size_t kMaxProofs = 4096;

constexpr uint64_t kMaxDurationNs = 86400ull * 1000'000'000;

class Decoder {
 public:
  Image decode(std::span<const std::byte> binary) {
    Reader file(binary);
    auto magic = file.take(4);
    if (std::memcmp(magic.data(), "SPYP", 4) != 0) bad("not a Spyre program: the magic is not SPYP");
    if (auto v = file.get<uint16_t>(); v != kVersion)
      bad("program version " + std::to_string(v) + "; this card reads version " + std::to_string(kVersion));
    if (file.get<uint16_t>() != 0) bad("file flags must be 0");
    uint32_t length = file.get<uint32_t>();
    uint32_t crc = file.get<uint32_t>();
    auto body = file.take(length);
    if (!file.empty()) bad("bytes follow the body");
    if (crc32(body) != crc) bad("checksum mismatch: the binary is corrupt");
    Reader r(body);
    read_header(r);
    read_instructions(r);
    if (!r.empty()) bad("bytes follow the last instruction");
    return std::move(image_);
  }

 private:
  void read_header(Reader& r) {
    image_.args.resize(r.count(9));
    for (Argument& a : image_.args) {
      a.access = r.get<uint8_t>();
      a.bytes = r.get<uint64_t>();
      if (a.access < 1 || a.access > 3) bad("argument access must be 1, 2 or 3");
      if (a.bytes > kSegmentBytes) bad("an argument of " + std::to_string(a.bytes) + " bytes exceeds a 16 GiB segment");
    }
    image_.scalar_is_float.resize(r.count(1));
    for (uint8_t& s : image_.scalar_is_float) {
      s = r.get<uint8_t>();
      if (s > 1) bad("launch scalar kind must be 0 or 1");
      image_.n_int_scalars += s == 0;
    }
    image_.registers = r.get<uint32_t>();
    if (image_.registers < 1 + image_.n_int_scalars || image_.registers > 65536)
      bad(std::to_string(image_.registers) + " registers; need 1 + integer launch scalars .. 65536");
    image_.cores = r.get<uint32_t>();
    if (image_.cores < 1 || image_.cores > kCores) bad(std::to_string(image_.cores) + " cores; a card has 1..32");
    image_.lx_bytes = r.get<uint32_t>();
    if (image_.lx_bytes > kLxBytes) bad(std::to_string(image_.lx_bytes) + " bytes of LX; a core has 2 MiB");
    image_.duration_ns = r.get<uint64_t>();
    if (image_.duration_ns > kMaxDurationNs)
      bad("a launch of " + std::to_string(image_.duration_ns) + " ns; the device clock takes up to a day");
    image_.strings.resize(r.count(2));
    for (std::string& s : image_.strings) {
      auto bytes = r.take(r.get<uint16_t>());
      s.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      if (!valid_utf8(s)) bad("an origin string is not UTF-8");
    }
    auto constants = r.take(r.get<uint32_t>());
    image_.constants.assign(constants.begin(), constants.end());
  }

  void read_instructions(Reader& r) {
    uint32_t n = r.count(12);
    image_.instrs.reserve(n);
    for (pc_ = 0; pc_ < n; ++pc_) {
      Instr& i = image_.instrs.emplace_back();
      i.op = static_cast<Op>(r.get<uint16_t>());
      i.flags = r.get<uint16_t>();
      i.origin = r.get<uint32_t>();
      Reader payload(r.take(r.get<uint32_t>()));
      if (i.origin != kNoOrigin && i.origin >= image_.strings.size()) fail("origin index out of range");
      if (i.flags & ~known_flags(i.op)) fail("unknown flags " + std::to_string(i.flags));
      read_payload(payload, i);
      if (!payload.empty()) fail("payload is longer than the instruction");
      if (i.op == Op::END && pc_ + 1 != n) fail("END before the last instruction");
    }
    if (n == 0 || image_.instrs.back().op != Op::END) bad("the last instruction must be END");
    if (!nesting_.empty()) bad("a LOOP or IF is not closed");
  }

  static int known_flags(Op op) {
    if (op == Op::REDUCE) return kAccumulate;
    if (op == Op::MATMUL) return kAccumulate | kTaps;
    if (op == Op::SCATTER) return kAccumulate | kMasked;
    return op == Op::GATHER ? kMasked : 0;
  }

  void read_payload(Reader& r, Instr& i) {
    switch (i.op) {
      case Op::END:
        return;
      case Op::BARRIER:
        return check_barrier();
      case Op::LOOP:
        return read_loop(r, i);
      case Op::ENDLOOP:
        return close(i, Op::LOOP);
      case Op::IF:
        i.a = affine(r);
        return open();
      case Op::ENDIF:
        return close(i, Op::IF);
      case Op::SOP:
        return read_sop(r, i);
      case Op::VOP:
        return read_vop(r, i);
      case Op::REDUCE:
        return read_reduce(r, i);
      case Op::MATMUL:
        return read_matmul(r, i);
      case Op::COPY:
        return read_copy(r, i);
      case Op::RINGSUM:
        return read_ringsum(r, i);
      case Op::GATHER:
      case Op::SCATTER:
        return read_indexed(r, i);
      case Op::IOTA:
        return read_iota(r, i);
      case Op::SCAN:
        return read_scan(r, i);
      case Op::ARGREDUCE:
        return read_arg_reduce(r, i);
      case Op::SORT:
        return read_sort(r, i);
    }
    fail("unknown opcode " + std::to_string(static_cast<int>(i.op)));
  }

  // Control.

  void open() {
    if (nesting_.size() >= kMaxNesting) fail("more than 64 nested LOOPs and IFs");
    nesting_.push_back(pc_);
  }
  void close(Instr& i, Op opener) {
    if (nesting_.empty() || image_.instrs[nesting_.back()].op != opener) fail("closes nothing");
    i.partner = nesting_.back();
    image_.instrs[i.partner].partner = pc_;
    nesting_.pop_back();
  }
  void check_barrier() {
    for (uint32_t pc : nesting_)
      if (image_.instrs[pc].op == Op::IF) fail("BARRIER inside IF");
  }
  void read_loop(Reader& r, Instr& i) {
    i.reg = writable_register(r);
    i.a = affine(r);
    i.b = affine(r);
    i.step = r.get<int64_t>();
    if (i.step <= 0) fail("LOOP step must be positive");
    open();
  }
  void read_sop(Reader& r, Instr& i) {
    i.reg = writable_register(r);
    uint8_t op = r.get<uint8_t>();
    if (op > static_cast<uint8_t>(SOp::max)) fail("unknown scalar operation " + std::to_string(op));
    i.sop = static_cast<SOp>(op);
    i.a = affine(r);
    i.b = affine(r);
  }

  // Tile instructions.

  void read_vop(Reader& r, Instr& i) {
    i.vop = static_cast<VOp>(r.get<uint16_t>());
    int wanted = 0;
    switch (i.vop) {
#define VOP(code, name, operands) \
  case VOp::name:                 \
    wanted = operands;            \
    break;
#include "spyre/vops.def"
#undef VOP
    }
    if (wanted == 0) fail("unknown vector operation " + std::to_string(static_cast<int>(i.vop)));
    read_compute(r, i);
    read_dims(r, i);
    read_output(r, i);
    uint8_t n = r.get<uint8_t>();
    if (n != wanted) fail(std::to_string(n) + " inputs; " + vop_name(i.vop) + " takes " + std::to_string(wanted));
    for (int k = 0; k < n; ++k) read_input(r, i);
  }

  void read_reduce(Reader& r, Instr& i) {
    read_rop(r, i);
    read_compute(r, i);
    i.reduced_mask = r.get<uint8_t>();
    read_dims(r, i);
    if (i.reduced_mask >> i.rank) fail("the mask of reduced dims names a dim that does not exist");
    read_output(r, i);
    read_input(r, i);
    for (int d = 0; d < i.rank; ++d)
      if (i.reduced_mask >> d & 1) need_still(i, 0, d, "the output moves along a reduced dim");
  }

  void read_matmul(Reader& r, Instr& i) {
    read_dims(r, i);
    const int m = i.rank - 3 - i.taps(), n = m + 1;
    if (m < 0) fail("MATMUL needs dims m, n, k and as many further dims of k as its flags say");
    read_output(r, i);
    read_input(r, i);
    read_input(r, i);
    auto ops = image_.operands_of(i);
    for (int k = 0; k < 3; ++k)
      if (!ops[k].addressed()) fail("MATMUL operands must be tensors");
    for (int k = n + 1; k < i.rank; ++k) need_still(i, 0, k, "c moves along k");
    need_still(i, 1, n, "a moves along n");
    need_still(i, 2, m, "b moves along m");
    const bool bytes = ops[1].format == Format::SENINT8 && ops[2].format == Format::SENINT8;
    Format accumulator = bytes ? Format::IEEE_INT32 : Format::IEEE_FP32;
    if (i.accumulates() && ops[0].format != accumulator)
      fail(std::string("c as initial value must be ") + format_name(accumulator));
  }

  void read_copy(Reader& r, Instr& i) {
    read_dims(r, i);
    read_output(r, i);
    read_input(r, i);
  }

  void read_ringsum(Reader& r, Instr& i) {
    i.ring_cores = r.get<uint32_t>();
    if (i.ring_cores < 1 || i.ring_cores > image_.cores)
      fail("RINGSUM over " + std::to_string(i.ring_cores) + " cores");
    i.a = affine(r);
    i.step = r.get<int64_t>();
    if (i.step < -kCores || i.step > kCores) fail("RINGSUM core step " + std::to_string(i.step) + " leaves the card");
    read_dims(r, i);
    read_output(r, i);
    read_input(r, i);
    if (image_.operands_of(i)[1].space != Space::LX_REMOTE) fail("RINGSUM sources must be LX_REMOTE");
  }

  void read_indexed(Reader& r, Instr& i) {
    read_dims(r, i);
    read_output(r, i);
    read_input(r, i);
    Operand table = image_.operands_of(i)[i.table_operand()];
    if (!table.addressed()) fail("the table must be a tensor");
    uint8_t n = r.get<uint8_t>();
    if (n < 1 || n > kMaxIndices) fail(std::to_string(n) + " indices; 1 to 4 are possible");
    i.first_index = static_cast<uint32_t>(image_.indices.size());
    for (int k = 0; k < n; ++k) {
      read_input(r, i);
      Format f = image_.operands.back().format;
      if (!is_index_format(f)) fail(std::string("an index of format ") + format_name(f) + " is no integer");
      Index index{read_dim_map(r, format_bytes(table.format)), r.get<int64_t>()};
      if (index.limit < 1 || index.limit > kMaxStride)
        fail("index limit " + std::to_string(index.limit) + " is not positive or exceeds card memory");
      image_.indices.push_back(index);
    }
  }

  static bool is_index_format(Format f) {
    return f == Format::IEEE_INT32 || f == Format::SENUINT32 || f == Format::SENINT16 || f == Format::SENINT8;
  }

  void read_iota(Reader& r, Instr& i) {
    read_dims(r, i);
    read_output(r, i);
    i.a = affine(r);
    i.first_step = static_cast<uint32_t>(image_.maps.size());
    for (int d = 0; d < i.rank; ++d) image_.maps.push_back(read_dim_map(r, 1));
  }

  void read_scan(Reader& r, Instr& i) {
    read_rop(r, i);
    read_compute(r, i);
    i.dim = r.get<uint8_t>();
    read_dims(r, i);
    check_dim(i);
    read_output(r, i);
    read_input(r, i);
  }

  void read_arg_reduce(Reader& r, Instr& i) {
    read_rop(r, i);
    if (i.rop != ROp::max && i.rop != ROp::min) fail("ARGREDUCE finds the largest (1) or the smallest (2) element");
    i.dim = r.get<uint8_t>();
    i.outputs = r.get<uint8_t>();
    read_dims(r, i);
    check_dim(i);
    read_outputs_and_source(r, i);
    for (int k = 0; k < i.n_outputs; ++k) need_still(i, k, i.dim, "an output moves along the reduced dim");
  }

  void read_sort(Reader& r, Instr& i) {
    i.dim = r.get<uint8_t>();
    i.order = r.get<uint8_t>();
    if (i.order > (kDescending | kStable)) fail("unknown sort order " + std::to_string(i.order));
    i.step = r.get<int64_t>();
    if (i.step < 1) fail("SORT keeps " + std::to_string(i.step) + " elements; at least 1");
    i.outputs = r.get<uint8_t>();
    read_dims(r, i);
    check_dim(i);
    read_outputs_and_source(r, i);
  }

  void read_outputs_and_source(Reader& r, Instr& i) {
    if (i.outputs < 1 || i.outputs > 3) fail("outputs " + std::to_string(i.outputs) + "; 1 to 3 are possible");
    i.n_outputs = static_cast<uint8_t>(std::popcount(i.outputs));
    for (int k = 0; k < i.n_outputs; ++k) read_output(r, i);
    read_input(r, i);
    if (!image_.operands_of(i).back().addressed()) fail("the source must be a tensor");
  }

  void check_dim(const Instr& i) {
    if (i.dim >= i.rank) fail("dim " + std::to_string(i.dim) + " of " + std::to_string(i.rank) + " dims");
  }

  void read_rop(Reader& r, Instr& i) {
    uint8_t op = r.get<uint8_t>();
    if (op > static_cast<uint8_t>(ROp::prod)) fail("unknown reduction " + std::to_string(op));
    i.rop = static_cast<ROp>(op);
  }

  void read_compute(Reader& r, Instr& i) {
    uint8_t c = r.get<uint8_t>();
    if (c > 1) fail("unknown compute type " + std::to_string(c));
    i.compute = static_cast<Compute>(c);
  }

  void read_dims(Reader& r, Instr& i) {
    i.rank = r.get<uint8_t>();
    if (i.rank > kMaxDims) fail("rank " + std::to_string(i.rank) + " exceeds 8");
    i.first_dim = static_cast<uint32_t>(image_.extents.size());
    i.first_operand = static_cast<uint32_t>(image_.operands.size());
    for (int d = 0; d < i.rank; ++d) {
      Extent e;
      e.value = affine(r);
      e.cap = r.get<int64_t>();
      image_.extents.push_back(e);
    }
  }

  void read_output(Reader& r, Instr& i) {
    const Operand& o = operand(r, i);
    if (o.space != Space::MEM && o.space != Space::LX) fail("the output must be memory or the core's own LX");
    if (o.space != Space::MEM) return;
    uint8_t wanted = i.accumulates() ? kRead | kWrite : kWrite;
    if ((image_.args[o.index].access & wanted) != wanted) fail("writes an argument that is not declared for it");
  }

  void read_input(Reader& r, Instr& i) {
    const Operand& o = operand(r, i);
    if (o.space == Space::LX_REMOTE && i.op != Op::COPY && i.op != Op::RINGSUM)
      fail("only COPY and RINGSUM read other cores' LX");
    if (o.space == Space::MEM && !(image_.args[o.index].access & kRead))
      fail("reads an argument that is not declared for it");
  }

  Operand& operand(Reader& r, Instr& i) {
    Operand o;
    uint8_t space = r.get<uint8_t>();
    if (space < 1 || space > 6) fail("unknown operand space " + std::to_string(space));
    o.space = static_cast<Space>(space);
    o.format = static_cast<Format>(r.get<uint8_t>());
    if (format_bytes(o.format) == 0 || format_elems_per_stick(o.format) == 0)
      fail("format " + std::to_string(static_cast<int>(o.format)) + " is not stored by this card");
    if (o.space == Space::SCALAR || o.space == Space::IMM) {
      read_broadcast(r, o);
    } else {
      if (o.space == Space::MEM && (o.index = r.get<uint16_t>()) >= image_.args.size())
        fail("argument index out of range");
      if (o.space == Space::LX_REMOTE) o.core = affine(r);
      o.offset = affine(r);
      read_maps(r, i, o);
    }
    ++i.n_operands;
    return image_.operands.emplace_back(o);
  }

  void read_broadcast(Reader& r, Operand& o) {
    if (o.format != Format::IEEE_FP32 && o.format != Format::IEEE_INT32)
      fail("a scalar must be IEEE_FP32 or IEEE_INT32");
    if (o.space == Space::SCALAR) {
      o.index = r.get<uint16_t>();
      if (o.index >= image_.scalar_is_float.size()) fail("launch scalar index out of range");
      if (image_.scalar_is_float[o.index] != (o.format == Format::IEEE_FP32)) fail("launch scalar of the other kind");
    } else {
      o.bits = r.get<uint32_t>();
    }
    o.first_map = static_cast<uint32_t>(image_.maps.size());
    image_.maps.resize(image_.maps.size() + kMaxDims);
  }

  void read_maps(Reader& r, const Instr& i, Operand& o) {
    uint8_t mode = r.get<uint8_t>();
    if (mode > 1) fail("unknown map mode " + std::to_string(mode));
    if (mode == 1) return read_layout(r, i, o);
    o.first_map = static_cast<uint32_t>(image_.maps.size());
    for (int d = 0; d < i.rank; ++d) image_.maps.push_back(read_dim_map(r, format_bytes(o.format)));
  }

  DimMap read_dim_map(Reader& r, int unit) {
    DimMap m;
    uint8_t kind = r.get<uint8_t>();
    if (kind > 2) fail("unknown map kind " + std::to_string(kind));
    if (kind == 2) {
      m.block = r.get<int64_t>();
      if (m.block <= 0 || m.block > kMaxStride) fail("stick block " + std::to_string(m.block) + " is not positive");
    }
    if (kind >= 1) m.inner = stride(r, unit);
    if (kind == 2) m.outer = stride(r, unit);
    return m;
  }

  void read_layout(Reader& r, const Instr& i, Operand& o) {
    if (i.op != Op::COPY) fail("only COPY takes layout maps");
    Layout l;
    l.offset = affine(r);
    for (int d = 0; d < i.rank; ++d) {
      l.map.stride[d] = r.get<int64_t>();
      if (l.map.stride[d] < -kMaxStride || l.map.stride[d] > kMaxStride) fail("host stride too large");
    }
    l.map.n_device_dims = r.get<uint8_t>();
    if (l.map.n_device_dims > kMaxDims) fail("a layout of more than 8 device dims");
    int64_t previous = kMaxStride;
    for (int d = 0; d < l.map.n_device_dims; ++d) {
      auto& dev = l.map.device[d];
      dev.host_stride = r.get<int64_t>();
      dev.extent = r.get<int64_t>();
      dev.byte_stride = stride(r, format_bytes(o.format));
      if (dev.host_stride <= 0 || dev.host_stride > previous)
        fail("layout host strides must be positive and descending");
      if (dev.extent <= 0 || dev.extent > kMaxStride || dev.byte_stride < 0)
        fail("layout extents and byte strides must be positive");
      previous = dev.host_stride;
    }
    o.layout = static_cast<int32_t>(image_.layouts.size());
    image_.layouts.push_back(l);
  }

  int64_t stride(Reader& r, int unit) {
    int64_t s = r.get<int64_t>();
    if (s < -kMaxStride || s > kMaxStride) fail("byte stride " + std::to_string(s) + " exceeds card memory");
    if (s % unit) fail("byte stride " + std::to_string(s) + " is not a multiple of the element");
    return s;
  }

  void need_still(const Instr& i, int operand, int dim, const char* message) {
    const Operand& o = image_.operands_of(i)[operand];
    const DimMap& m = image_.maps[o.first_map + dim];
    if (m.inner != 0 || m.outer != 0) fail(message);
  }

  Affine affine(Reader& r) {
    Affine a;
    a.constant = r.get<int64_t>();
    a.n = r.get<uint8_t>();
    a.first = static_cast<uint32_t>(image_.terms.size());
    for (uint32_t k = 0; k < a.n; ++k) {
      uint16_t reg = r.get<uint16_t>();
      if (reg >= image_.registers) fail("register " + std::to_string(reg) + " out of range");
      image_.terms.push_back({reg, r.get<int64_t>()});
    }
    return a;
  }

  uint16_t writable_register(Reader& r) {
    uint16_t reg = r.get<uint16_t>();
    if (reg >= image_.registers) fail("register " + std::to_string(reg) + " out of range");
    if (reg <= image_.n_int_scalars)
      fail("register " + std::to_string(reg) + " holds the core id or a launch scalar and cannot be written");
    return reg;
  }

  [[noreturn]] void fail(const std::string& message) const {
    bad("instruction " + std::to_string(pc_) + ": " + message);
  }

  Image image_;
  uint32_t pc_ = 0;
  std::vector<uint32_t> nesting_;
};

bool names_register(const Image& image, size_t reg) {
  return std::any_of(image.terms.begin(), image.terms.end(), [&](const Term& t) { return t.reg == reg; });
}

}  // namespace

Image decode_program(std::span<const std::byte> binary) { return Decoder().decode(binary); }

ProgramImpl::ProgramImpl(Image image, std::span<const std::byte> binary)
    : image_(std::move(image)), binary_(binary.begin(), binary.end()) {
  for (size_t k = 0; k < image_.n_int_scalars; ++k) scalar_matters_.push_back(names_register(image_, 1 + k));
  if (std::find(scalar_matters_.begin(), scalar_matters_.end(), true) == scalar_matters_.end()) {
    const std::vector<int64_t> any(image_.n_int_scalars, 0);
    constant_proof_ = std::make_shared<const Proof>(card::prove(image_, any));
  }
}

std::vector<int64_t> ProgramImpl::proof_key(std::span<const Scalar> scalars) const {
  std::vector<int64_t> key;
  for (size_t s = 0; s < scalars.size(); ++s)
    if (!image_.scalar_is_float[s]) key.push_back(scalar_matters_[key.size()] ? scalars[s].i : 0);
  return key;
}

bool ProgramImpl::proved(std::span<const Scalar> scalars) const {
  if (constant_proof_ || scalars.size() != image_.scalar_is_float.size()) return true;  // the launch refuses the latter
  const std::vector<int64_t> key = proof_key(scalars);
  std::lock_guard lock(mutex_);
  return proofs_.contains(key);
}

std::shared_ptr<const Proof> ProgramImpl::proof_for(std::span<const Scalar> scalars) const {
  if (constant_proof_) return constant_proof_;
  std::vector<int64_t> key = proof_key(scalars);
  {
    std::lock_guard lock(mutex_);
    if (auto found = proofs_.find(key); found != proofs_.end()) return found->second;
  }
  auto proof = std::make_shared<const Proof>(card::prove(image_, key));
  std::lock_guard lock(mutex_);
  if (proofs_.size() >= kMaxProofs) proofs_.clear();
  proofs_.emplace(std::move(key), proof);
  return proof;
}

std::shared_ptr<const Program> Program::load(std::span<const std::byte> binary) {
  return std::make_shared<const ProgramImpl>(decode_program(binary), binary);
}

}  // namespace spyre::card
