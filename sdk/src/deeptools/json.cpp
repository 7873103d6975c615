// SPDX-License-Identifier: Apache-2.0
#include "deeptools/json.h"

#include <cctype>

namespace spyre::sdk {
namespace {

constexpr int kDepth = 100;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json document() {
    Json value = this->value(0);
    blanks();
    if (at_ != text_.size()) wrong("more after the end");
    return value;
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    throw std::invalid_argument("no valid JSON: " + what + " at character " + std::to_string(at_));
  }
  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }
  char peek() {
    blanks();
    if (at_ == text_.size()) wrong("it ends early");
    return text_[at_];
  }
  void expect(char c) {
    if (peek() != c) wrong(std::string("expected '") + c + "'");
    ++at_;
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  Json value(int depth) {
    if (depth > kDepth) wrong("it is nested too deeply");
    const char c = peek();
    if (c == '{') return object(depth);
    if (c == '[') return array(depth);
    if (c == '"') return {Json::Kind::string, string(), {}, {}};
    if (c == '-' || std::isdigit(static_cast<unsigned char>(c))) return number();
    for (const char* word : {"null", "true", "false"})
      if (text_.substr(at_).starts_with(word)) {
        at_ += std::string_view(word).size();
        return {word[0] == 'n' ? Json::Kind::null : Json::Kind::boolean, word, {}, {}};
      }
    wrong(std::string("unexpected '") + c + "'");
  }

  Json object(int depth) {
    Json made{Json::Kind::object, {}, {}, {}};
    expect('{');
    if (take('}')) return made;
    do {
      if (peek() != '"') wrong("expected a name");
      std::string name = string();
      expect(':');
      made.members[std::move(name)] = value(depth + 1);
    } while (take(','));
    expect('}');
    return made;
  }

  Json array(int depth) {
    Json made{Json::Kind::array, {}, {}, {}};
    expect('[');
    if (take(']')) return made;
    do {
      made.items.push_back(value(depth + 1));
    } while (take(','));
    expect(']');
    return made;
  }

  Json number() {
    const size_t begin = at_;
    auto digits = [&] {
      const size_t first = at_;
      while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) ++at_;
      if (at_ == first) wrong("expected a digit");
    };
    if (text_[at_] == '-') ++at_;
    digits();
    if (at_ < text_.size() && text_[at_] == '.') ++at_, digits();
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      digits();
    }
    return {Json::Kind::number, std::string(text_.substr(begin, at_ - begin)), {}, {}};
  }

  std::string string() {
    std::string made;
    for (++at_;; ++at_) {
      if (at_ >= text_.size()) wrong("a string without end");
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) wrong("a control character in a string");
      if (c == '"') break;
      if (c == '\\')
        escape(made);
      else
        made += c;
    }
    ++at_;
    return made;
  }

  void escape(std::string& to) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (++at_ >= text_.size()) wrong("a string without end");
    if (text_[at_] == 'u') return unicode(to);
    const size_t which = kNames.find(text_[at_]);
    if (which == std::string_view::npos) wrong("an unknown escape");
    to += kMeanings[which];
  }

  uint32_t hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = ++at_ < text_.size() ? text_[at_] : '?';
      if (!std::isxdigit(static_cast<unsigned char>(c))) wrong("expected four hexadecimal digits");
      code = code * 16 +
             static_cast<uint32_t>(std::isdigit(static_cast<unsigned char>(c)) ? c - '0' : (c | 32) - 'a' + 10);
    }
    return code;
  }

  void unicode(std::string& to) {
    uint32_t code = hex4();
    if (code >= 0xD800 && code < 0xDC00) {
      if (text_.substr(at_ + 1, 2) != "\\u") wrong("half of a surrogate pair");
      at_ += 2;
      const uint32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) wrong("half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      wrong("half of a surrogate pair");
    }
    if (code < 0x80) {
      to += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    to += static_cast<char>((0xF00 >> more & 0xFF) | code >> (6 * more));
    for (int i = more - 1; i >= 0; --i) to += static_cast<char>(0x80 | (code >> (6 * i) & 0x3F));
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Json parse_json(std::string_view text) { return Parser(text).document(); }

}  // namespace spyre::sdk
