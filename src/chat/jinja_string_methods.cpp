// Methods of str as templates call them.
#include <algorithm>

#include "chat/jinja_interpreter.h"

namespace eyrie::chat::jinja {
namespace {

const Text& text_argument(const Params& params, size_t i, const char* method) {
  if (!params.get(i).is_string()) {
    throw TemplateError(
        fmt::format("{}() needs a string, not {}", method, type_name(params.get(i))));
  }
  return params.get(i).text();
}

template <bool kLeft, bool kRight>
Value m_strip(Interpreter& in, const Value& self, Args& args) {
  const Params params("strip", args, {"chars"});
  return strip_text(self.text(), kLeft, kRight, params.not_none(0), in.budget());
}

template <std::string (*Convert)(std::string_view)>
Value m_convert(Interpreter& in, const Value& self, Args& args) {
  const Params params("method", args, {});
  return map_text(self.text(), Convert, in.budget());
}

std::string swapped_case(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    is_upper(c) ? append_lower(c, out) : append_upper(c, out);
  }
  return out;
}

// str.title: a letter is lower behind a letter.
std::string title_case(std::string_view text) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    inside ? append_lower(c, out) : append_upper(c, out);
    inside = is_upper(c) || is_lower(c);
  }
  return out;
}

Value m_replace(Interpreter& in, const Value& self, Args& args) {
  const Params params("replace", args, {"old", "new", "count"}, 2);
  return replace_text(self.text(), text_argument(params, 0, "replace"),
                      text_argument(params, 1, "replace"), params.integer(2, -1), in.budget());
}

void add_piece(std::vector<Value>& pieces, const Text& text, size_t begin, size_t end,
               Interpreter& in) {
  in.budget().make(sizeof(Text) + sizeof(Value));
  pieces.emplace_back(slice(text, begin, end, in.budget()));
}

std::vector<Value> split_at_space(Interpreter& in, const Text& text, int64_t most, bool from_end) {
  std::vector<Range> words;
  const std::string_view bytes = text.bytes;
  if (from_end) {
    size_t end = bytes.size();
    while (true) {
      end = stripped(bytes.substr(0, end), false, true, nullptr).end;
      if (end == 0) break;
      size_t begin = end;
      if (most >= 0 && static_cast<int64_t>(words.size()) == most) {
        begin = 0;
      } else {
        for (size_t at = end; at > 0 && !is_space(previous_character(bytes, at)); begin = at) {
        }
      }
      words.push_back({begin, end});
      end = begin;
      if (most >= 0 && static_cast<int64_t>(words.size()) > most) break;
    }
    std::reverse(words.begin(), words.end());
  } else {
    size_t begin = 0;
    while (true) {
      begin += stripped(bytes.substr(begin), true, false, nullptr).begin;
      if (begin == bytes.size()) break;
      size_t end = begin;
      if (most >= 0 && static_cast<int64_t>(words.size()) == most) {
        end = bytes.size();
      } else {
        for (size_t at = begin; at < bytes.size() && !is_space(next_character(bytes, at));
             end = at) {
        }
      }
      words.push_back({begin, end});
      begin = end;
      if (most >= 0 && static_cast<int64_t>(words.size()) > most) break;
    }
  }
  std::vector<Value> pieces;
  for (const Range& word : words) add_piece(pieces, text, word.begin, word.end, in);
  return pieces;
}

std::vector<Value> split_at(Interpreter& in, const Text& text, const std::string& separator,
                            int64_t most, bool from_end) {
  if (separator.empty()) throw TemplateError("empty separator");
  std::vector<Value> pieces;
  const std::string& bytes = text.bytes;
  if (!from_end) {
    size_t begin = 0;
    for (size_t found = 0; most != 0 && (found = bytes.find(separator, begin)) != std::string::npos;
         --most) {
      add_piece(pieces, text, begin, found, in);
      begin = found + separator.size();
    }
    add_piece(pieces, text, begin, bytes.size(), in);
    return pieces;
  }
  size_t end = bytes.size();
  for (; most != 0 && end >= separator.size(); --most) {
    const size_t found = bytes.rfind(separator, end - separator.size());
    if (found == std::string::npos) break;
    add_piece(pieces, text, found + separator.size(), end, in);
    end = found;
  }
  add_piece(pieces, text, 0, end, in);
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

template <bool kFromEnd>
Value m_split(Interpreter& in, const Value& self, Args& args) {
  const Params params("split", args, {"sep", "maxsplit"});
  const int64_t most = params.integer(1, -1);
  in.budget().look(self.text().size());
  std::vector<Value> pieces =
      params.not_none(0) == nullptr
          ? split_at_space(in, self.text(), most, kFromEnd)
          : split_at(in, self.text(), text_argument(params, 0, "split").bytes, most, kFromEnd);
  return make_list(std::move(pieces), in.budget());
}

template <bool kFromEnd>
Value m_partition(Interpreter& in, const Value& self, Args& args) {
  const Params params("partition", args, {"sep"}, 1);
  const Text& separator = text_argument(params, 0, "partition");
  if (separator.size() == 0) throw TemplateError("empty separator");
  const Text& text = self.text();
  const size_t found =
      kFromEnd ? text.bytes.rfind(separator.bytes) : text.bytes.find(separator.bytes);
  std::vector<Value> parts;
  if (found == std::string::npos) {
    parts.assign(3, Value::string(""));
    parts[kFromEnd ? 2 : 0] = self;
  } else {
    add_piece(parts, text, 0, found, in);
    add_piece(parts, text, found, found + separator.size(), in);
    add_piece(parts, text, found + separator.size(), text.size(), in);
  }
  return make_list(std::move(parts), in.budget(), Flavor::kTuple);
}

Value m_splitlines(Interpreter& in, const Value& self, Args& args) {
  const Params params("splitlines", args, {"keepends"});
  std::vector<Value> lines;
  for (const Range& line : line_ranges(self.text().bytes, params.flag(0))) {
    add_piece(lines, self.text(), line.begin, line.end, in);
  }
  return make_list(std::move(lines), in.budget());
}

// The bytes between the characters start and end of a call's arguments i and i + 1.
Range asked_range(const Text& text, const Params& params, size_t i) {
  const auto or_none = [&](size_t at) {
    return params.not_none(at) != nullptr ? params.get(at) : Value();
  };
  const int64_t length = num_characters(text.bytes);
  if (const Value* start = params.not_none(i);
      start != nullptr && start->is_int() && start->integer() > length) {
    return {1, 0};  // finds nothing, not even the empty text
  }
  const SlicePlan plan = plan_slice(length, or_none(i), or_none(i + 1), Value());
  const size_t begin = offset_of_character(text.bytes, plan.start);
  return {begin,
          begin + offset_of_character(std::string_view(text.bytes).substr(begin), plan.count)};
}

template <bool kAtEnd>
Value m_begins_or_ends(Interpreter& in, const Value& self, Args& args) {
  const Params params("startswith", args, {"prefix", "start", "end"}, 1);
  const Range range = asked_range(self.text(), params, 1);
  if (range.begin > range.end) return false;
  const std::string_view text =
      std::string_view(self.text().bytes).substr(range.begin, range.end - range.begin);
  const auto holds = [&](const Value& affix) {
    if (!affix.is_string()) {
      throw TemplateError("startswith and endswith need a string or a tuple of strings");
    }
    in.budget().look(affix.text().size());
    return kAtEnd ? text.ends_with(affix.text().bytes) : text.starts_with(affix.text().bytes);
  };
  const Value& affix = params.get(0);
  if (!affix.is_list() || affix.list().flavor != Flavor::kTuple) return holds(affix);
  return std::any_of(affix.list().items.begin(), affix.list().items.end(), holds);
}

// The character index of a text in this one, or -1.
template <bool kFromEnd>
int64_t found_at(Interpreter& in, const Value& self, Args& args) {
  const Params params("find", args, {"sub", "start", "end"}, 1);
  const Text& wanted = text_argument(params, 0, "find");
  const Range range = asked_range(self.text(), params, 1);
  if (range.begin > range.end) return -1;
  const std::string_view text =
      std::string_view(self.text().bytes).substr(range.begin, range.end - range.begin);
  in.budget().look(text.size());
  const size_t found = kFromEnd ? text.rfind(wanted.bytes) : text.find(wanted.bytes);
  if (found == std::string_view::npos) return -1;
  return num_characters(std::string_view(self.text().bytes).substr(0, range.begin + found));
}

template <bool kFromEnd>
Value m_find(Interpreter& in, const Value& self, Args& args) {
  return Int{found_at<kFromEnd>(in, self, args)};
}

template <bool kFromEnd>
Value m_index_of_text(Interpreter& in, const Value& self, Args& args) {
  const int64_t found = found_at<kFromEnd>(in, self, args);
  if (found < 0) throw TemplateError("substring not found");
  return Int{found};
}

Value m_count_text(Interpreter& in, const Value& self, Args& args) {
  const Params params("count", args, {"sub", "start", "end"}, 1);
  const std::string& wanted = text_argument(params, 0, "count").bytes;
  const Range range = asked_range(self.text(), params, 1);
  if (range.begin > range.end) return 0;
  const std::string_view text =
      std::string_view(self.text().bytes).substr(range.begin, range.end - range.begin);
  in.budget().look(text.size());
  if (wanted.empty()) return Int{num_characters(text) + 1};
  int count = 0;
  for (size_t at = 0; (at = text.find(wanted, at)) != std::string_view::npos; at += wanted.size()) {
    ++count;
  }
  return count;
}

// A separator's join; unlike the filter it takes strings only.
Value m_join(Interpreter& in, const Value& self, Args& args) {
  const Params params("join", args, {"iterable"}, 1);
  const Items items = in.iterate(params.get(0));
  TextBuilder out(in.budget());
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items.all()[i].is_string()) {
      throw TemplateError(fmt::format("sequence item {}: expected str instance, {} found", i,
                                      type_name(items.all()[i])));
    }
    if (i > 0) out.add(self.text());
    out.add(items.all()[i].text());
  }
  return out.take();
}

Value m_format(Interpreter& in, const Value& self, Args& args) {
  return format_braces(self.text(), args, in);
}

template <bool kAtEnd>
Value m_remove_affix(Interpreter& in, const Value& self, Args& args) {
  const Params params("removeprefix", args, {"affix"}, 1);
  const Text& text = self.text();
  const std::string& affix = text_argument(params, 0, "removeprefix").bytes;
  const bool has = kAtEnd ? text.bytes.ends_with(affix) : text.bytes.starts_with(affix);
  if (!has || affix.empty()) return self;
  return kAtEnd ? slice(text, 0, text.size() - affix.size(), in.budget())
                : slice(text, affix.size(), text.size(), in.budget());
}

enum class Side { kLeft, kRight, kBoth };

template <Side kSide>
Value m_pad(Interpreter& in, const Value& self, Args& args) {
  const Params params("center", args, {"width", "fillchar"}, 1);
  const Text& text = self.text();
  const int64_t width = params.integer(0, 0);
  const std::string fill =
      params.find(1) != nullptr ? text_argument(params, 1, "center").bytes : " ";
  if (num_characters(fill) != 1) throw TemplateError("the fill must be one character");
  const int64_t space = std::max<int64_t>(0, width - num_characters(text.bytes));
  in.budget().check_size(static_cast<size_t>(space) * fill.size());
  const int64_t left = kSide == Side::kLeft    ? 0
                       : kSide == Side::kRight ? space
                                               : space / 2 + (space & width & 1);
  TextBuilder out(in.budget());
  for (int64_t i = 0; i < left; ++i) out.own(fill);
  out.add(text);
  for (int64_t i = left; i < space; ++i) out.own(fill);
  return out.take();
}

Value m_zfill(Interpreter& in, const Value& self, Args& args) {
  const Params params("zfill", args, {"width"}, 1);
  const Text& text = self.text();
  const int64_t space = std::max<int64_t>(0, params.integer(0, 0) - num_characters(text.bytes));
  in.budget().check_size(static_cast<size_t>(space));
  const size_t sign = text.bytes.starts_with('-') || text.bytes.starts_with('+') ? 1 : 0;
  TextBuilder out(in.budget());
  out.add(text, 0, sign);
  out.own(std::string(static_cast<size_t>(space), '0'));
  out.add(text, sign, text.size());
  return out.take();
}

template <bool (*Holds)(char32_t)>
Value m_all_are(Interpreter& in, const Value& self, Args& args) {
  const Params params("method", args, {});
  const std::string& text = self.text().bytes;
  in.budget().look(text.size());
  for (size_t at = 0; at < text.size();) {
    if (!Holds(next_character(text, at))) return false;
  }
  return !text.empty();
}

bool is_alphanumeric(char32_t c) { return is_alphabetic(c) || is_numeric(c); }

template <bool kUpper>
Value m_has_case(Interpreter&, const Value& self, Args& args) {
  const Params params("method", args, {});
  return has_case(self.text().bytes, kUpper);
}

}  // namespace

const MethodTable& string_methods() {
  static const MethodTable table = {
      {"strip", m_strip<true, true>},
      {"lstrip", m_strip<true, false>},
      {"rstrip", m_strip<false, true>},
      {"split", m_split<false>},
      {"startswith", m_begins_or_ends<false>},
      {"endswith", m_begins_or_ends<true>},
      {"replace", m_replace},
      {"upper", m_convert<to_upper>},
      {"lower", m_convert<to_lower>},
      {"casefold", m_convert<to_lower>},
      {"title", m_convert<title_case>},
      {"capitalize", m_convert<capitalized>},
      {"swapcase", m_convert<swapped_case>},
      {"rsplit", m_split<true>},
      {"splitlines", m_splitlines},
      {"partition", m_partition<false>},
      {"rpartition", m_partition<true>},
      {"join", m_join},
      {"format", m_format},
      {"find", m_find<false>},
      {"rfind", m_find<true>},
      {"index", m_index_of_text<false>},
      {"rindex", m_index_of_text<true>},
      {"count", m_count_text},
      {"removeprefix", m_remove_affix<false>},
      {"removesuffix", m_remove_affix<true>},
      {"ljust", m_pad<Side::kLeft>},
      {"rjust", m_pad<Side::kRight>},
      {"center", m_pad<Side::kBoth>},
      {"zfill", m_zfill},
      {"isdigit", m_all_are<is_numeric>},
      {"isdecimal", m_all_are<is_numeric>},
      {"isnumeric", m_all_are<is_numeric>},
      {"isalpha", m_all_are<is_alphabetic>},
      {"isalnum", m_all_are<is_alphanumeric>},
      {"isspace", m_all_are<is_space>},
      {"isupper", m_has_case<true>},
      {"islower", m_has_case<false>},
  };
  return table;
}

}  // namespace eyrie::chat::jinja
