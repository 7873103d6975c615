// SPDX-License-Identifier: Apache-2.0
// Programs as text: a header, then one line per instruction, loops indented, origins as comments.
#include <cstring>
#include <sstream>

#include "program.h"

namespace spyre::card {

const char* op_name(Op op) {
  switch (op) {
    case Op::END:
      return "END";
    case Op::BARRIER:
      return "BARRIER";
    case Op::LOOP:
      return "LOOP";
    case Op::ENDLOOP:
      return "ENDLOOP";
    case Op::IF:
      return "IF";
    case Op::ENDIF:
      return "ENDIF";
    case Op::SOP:
      return "SOP";
    case Op::VOP:
      return "VOP";
    case Op::REDUCE:
      return "REDUCE";
    case Op::MATMUL:
      return "MATMUL";
    case Op::COPY:
      return "COPY";
    case Op::RINGSUM:
      return "RINGSUM";
    case Op::GATHER:
      return "GATHER";
    case Op::SCATTER:
      return "SCATTER";
    case Op::IOTA:
      return "IOTA";
    case Op::SCAN:
      return "SCAN";
    case Op::ARGREDUCE:
      return "ARGREDUCE";
    case Op::SORT:
      return "SORT";
  }
  return "?";
}

const char* vop_name(VOp op) {
  switch (op) {
#define VOP(code, name, operands) \
  case VOp::name:                 \
    return #name;
#include "spyre/vops.def"
#undef VOP
  }
  return "?";
}

const char* rop_name(ROp op) {
  constexpr const char* names[] = {"sum", "max", "min", "prod"};
  return names[static_cast<int>(op)];
}

namespace {

const char* sop_name(SOp op) {
  constexpr const char* names[] = {"add", "sub", "mul", "floordiv", "mod", "min", "max"};
  return names[static_cast<int>(op)];
}

const char* access_name(uint8_t access) { return access == kRead ? "read" : access == kWrite ? "write" : "read+write"; }

class Printer {
 public:
  explicit Printer(const Image& image) : image_(image) {}

  std::string print() {
    header();
    int depth = 1;
    for (size_t pc = 0; pc < image_.instrs.size(); ++pc) {
      const Instr& i = image_.instrs[pc];
      depth -= i.op == Op::ENDLOOP || i.op == Op::ENDIF;
      std::string number = std::to_string(pc);
      out_ << std::string(number.size() < 4 ? 4 - number.size() : 0, ' ') << number << std::string(2 * depth, ' ')
           << op_name(i.op);
      body(i);
      if (i.origin != kNoOrigin) out_ << "  ; " << one_line(image_.strings[i.origin]);
      out_ << "\n";
      depth += i.op == Op::LOOP || i.op == Op::IF;
    }
    return out_.str();
  }

 private:
  void header() {
    out_ << "program: " << image_.cores << " cores, " << image_.lx_bytes << " bytes of LX per core, "
         << image_.registers << " registers, " << image_.constants.size() << " bytes of constants, "
         << image_.duration_ns << " ns\n";
    for (size_t a = 0; a < image_.args.size(); ++a)
      out_ << "  arg" << a << ": " << access_name(image_.args[a].access) << ", " << image_.args[a].bytes << " bytes\n";
    int next = 1;
    for (size_t s = 0; s < image_.scalar_is_float.size(); ++s) {
      out_ << "  scalar" << s << ": " << (image_.scalar_is_float[s] ? "fp32" : "integer");
      if (!image_.scalar_is_float[s]) out_ << " in r" << next++;
      out_ << "\n";
    }
  }

  void body(const Instr& i) {
    switch (i.op) {
      case Op::LOOP:
        out_ << " r" << i.reg << " = " << text(i.a) << " .. " << text(i.b) << " step " << i.step;
        break;
      case Op::IF:
        out_ << " " << text(i.a) << " >= 0";
        break;
      case Op::SOP:
        out_ << " r" << i.reg << " = " << sop_name(i.sop) << "(" << text(i.a) << ", " << text(i.b) << ")";
        break;
      case Op::VOP:
        out_ << " " << vop_name(i.vop) << " " << compute(i);
        break;
      case Op::REDUCE:
        out_ << " " << rop_name(i.rop) << " " << compute(i) << " over " << mask(i);
        break;
      case Op::MATMUL:
        if (i.taps()) out_ << " taps " << i.taps();
        break;
      case Op::RINGSUM:
        out_ << " " << i.ring_cores << " cores from " << text(i.a) << " step " << i.step;
        break;
      case Op::GATHER:
      case Op::SCATTER:
        if (i.masked()) out_ << " masked";
        break;
      case Op::IOTA:
        out_ << " from " << text(i.a) << " by (";
        for (int d = 0; d < i.rank; ++d) out_ << (d ? "," : "") << text(image_.maps[i.first_step + d]);
        out_ << ")";
        break;
      case Op::SCAN:
        out_ << " " << rop_name(i.rop) << " " << compute(i) << " along " << int{i.dim};
        break;
      case Op::ARGREDUCE:
        out_ << " " << rop_name(i.rop) << " along " << int{i.dim};
        break;
      case Op::SORT:
        out_ << (i.order & kDescending ? " descending" : " ascending") << (i.order & kStable ? " stable" : "")
             << " along " << int{i.dim} << " first " << i.step;
        break;
      default:
        break;
    }
    if (i.tile()) tile(i);
  }

  void tile(const Instr& i) {
    out_ << " [";
    for (int d = 0; d < i.rank; ++d) {
      const Extent& e = image_.extents[i.first_dim + d];
      out_ << (d ? ", " : "");
      if (e.value.n == 0)
        out_ << std::max<int64_t>(0, std::min(e.cap, e.value.constant));
      else
        out_ << text(e.value) << "<=" << e.cap;
    }
    out_ << "]";
    auto operands = image_.operands_of(i);
    for (size_t k = 0; k < operands.size(); ++k) {
      out_ << label(i, k) << text(operands[k], i);
      if (!i.indexed() || k < 2) continue;
      const Index& index = image_.indices[i.first_index + k - 2];
      out_ << "*(" << text(index.along) << ")<" << index.limit;
    }
  }

  static std::string label(const Instr& i, size_t k) {
    if (i.op == Op::ARGREDUCE || i.op == Op::SORT) {
      if (k == i.n_outputs) return " in=";
      bool first = k == 0 && (i.outputs & 1);
      return first == (i.op == Op::SORT) ? " value=" : " index=";
    }
    if (i.indexed() && k == 2) return " at ";
    return k == 0 ? i.accumulates() ? " out+=" : " out=" : k == 1 ? " in=" : ", ";
  }

  std::string text(const Operand& o, const Instr& i) {
    std::ostringstream s;
    if (o.space == Space::IMM) {
      if (o.format == Format::IEEE_INT32) return std::to_string(static_cast<int32_t>(o.bits));
      float value;
      std::memcpy(&value, &o.bits, 4);
      s << value;
      return s.str();
    }
    if (o.space == Space::SCALAR) return "scalar" + std::to_string(o.index);
    if (o.space == Space::MEM) s << "arg" << o.index;
    if (o.space == Space::LX) s << "LX";
    if (o.space == Space::LX_REMOTE) s << "LX@" << (i.op == Op::RINGSUM ? "ring" : text(o.core));
    if (o.space == Space::CONST) s << "const";
    s << "+" << (o.offset.n ? text(o.offset) : hex(o.offset.constant)) << ":" << format_name(o.format) << "(";
    if (o.layout >= 0)
      layout(s, image_.layouts[o.layout], i.rank);
    else
      for (int d = 0; d < i.rank; ++d) s << (d ? "," : "") << text(image_.maps[o.first_map + d]);
    s << ")";
    return s.str();
  }

  void layout(std::ostringstream& s, const Layout& l, int rank) {
    s << "layout from " << text(l.offset) << " strides ";
    for (int d = 0; d < rank; ++d) s << (d ? "," : "") << l.map.stride[d];
    s << " dims ";
    for (int d = 0; d < l.map.n_device_dims; ++d) {
      const auto& dev = l.map.device[d];
      s << (d ? "," : "") << dev.host_stride << "x" << dev.extent << "@" << dev.byte_stride;
    }
  }

  static std::string text(const DimMap& m) {
    if (m.block == 0) return m.inner == 0 ? "-" : std::to_string(m.inner);
    return std::to_string(m.inner) + "/" + std::to_string(m.outer) + "%" + std::to_string(m.block);
  }

  std::string text(const Affine& a) const {
    std::string s;
    for (uint32_t t = a.first; t < a.first + a.n; ++t) {
      if (!s.empty()) s += "+";
      if (image_.terms[t].coef != 1) s += std::to_string(image_.terms[t].coef) + "*";
      s += "r" + std::to_string(image_.terms[t].reg);
    }
    if (a.constant != 0 || s.empty()) s += (s.empty() ? "" : "+") + std::to_string(a.constant);
    return s;
  }

  static std::string hex(int64_t value) {
    std::ostringstream s;
    if (value < 0) return std::to_string(value);
    s << "0x" << std::hex << value;
    return s.str();
  }

  static std::string one_line(std::string s) {
    for (char& c : s)
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    return s;
  }

  static const char* compute(const Instr& i) { return i.compute == Compute::f32 ? "f32" : "i32"; }
  static std::string mask(const Instr& i) {
    std::string s = "{";
    for (int d = 0; d < i.rank; ++d)
      if (i.reduced_mask >> d & 1) s += (s.size() > 1 ? "," : "") + std::to_string(d);
    return s + "}";
  }

  const Image& image_;
  std::ostringstream out_;
};

}  // namespace

std::string describe(const Image& image, uint32_t pc, int core) {
  const Instr& i = image.instrs[pc];
  std::string origin = image.origin_of(i);
  return "instruction " + std::to_string(pc) + " (" + op_name(i.op) + ") on core " + std::to_string(core) +
         (origin.empty() ? "" : ", from " + origin) + ": ";
}

std::string disassemble_image(const Image& image) { return Printer(image).print(); }

}  // namespace spyre::card
