#include "checkpoint/inventory.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

namespace eyrie::checkpoint {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::string group_of(const std::string& name) {
  std::string group;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    group += (begin == 0 ? "" : ".") + (is_number(part) ? std::string("*") : part);
    begin = end + 1;
  }
  return group;
}

// Is it counted with the weight beside it?
bool belongs_to_weight(const Checkpoint& files, const std::string& name) {
  constexpr std::array<std::string_view, 8> kParts = {
      ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale",
      ".weight_shape", ".input_scale",      ".input_scale_2",  ".input_global_scale"};
  for (const std::string_view part : kParts) {
    if (!name.ends_with(part)) continue;
    const std::string module = name.substr(0, name.size() - part.size());
    if (files.contains(module + ".weight") || files.contains(module + ".weight_packed")) {
      return true;
    }
  }
  return false;
}

const formats::WeightFormat* plain_format(DType dtype) {
  for (const formats::WeightFormat* format : formats::all_formats()) {
    if (format->block_in == 0 && format->data_dtype == dtype) return format;
  }
  return nullptr;
}

}  // namespace

std::vector<InventoryRow> inventory(const Checkpoint& files) {
  std::map<std::pair<std::string, std::string>, InventoryRow> rows;
  for (const std::string& name : files.names()) {
    if (belongs_to_weight(files, name)) continue;
    const Tensor& data = *files.find(name);
    const std::string module(module_of(name));
    const formats::WeightFormat* format =
        module.empty() ? plain_format(data.dtype()) : files.format_of(module);
    size_t bytes = data.bytes();
    if (!module.empty()) {
      bytes = 0;
      for (const std::string& part : files.weight_tensors(module))
        bytes += files.find(part)->bytes();
    }
    std::string label(format != nullptr ? format->name : dtype_name(data.dtype()));
    const Tensor* scales = files.find(module + ".weight_scale");
    if (format == nullptr && !module.empty() && scales != nullptr) {
      label += fmt::format(" + {} scales", dtype_name(scales->dtype()));
    }
    InventoryRow& row = rows[{group_of(name), label}];
    row.group = group_of(name);
    row.format = label;
    row.is_vector = data.rank() < 2;
    row.tensors += 1;
    row.bytes += bytes;
    row.parameters += format == nullptr
                          ? data.num_elements()
                          : static_cast<int64_t>(data.bytes()) * 8 / format->bits_per_element;
  }
  std::vector<InventoryRow> result;
  for (auto& [key, row] : rows) result.push_back(std::move(row));
  std::stable_sort(result.begin(), result.end(),
                   [](const InventoryRow& a, const InventoryRow& b) { return a.bytes > b.bytes; });
  return result;
}

}  // namespace eyrie::checkpoint
