#include "checkpoint/inventory.h"

#include <algorithm>
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

// The weight a scale belongs to; "" when it is none or the weight is not here.
std::string owner_of(const Checkpoint& files, const std::string& name) {
  const std::string suffix = "_scale";
  if (!name.ends_with(".weight" + suffix)) return "";
  const std::string owner = name.substr(0, name.size() - suffix.size());
  return files.contains(owner) ? owner : "";
}

const formats::WeightFormat* format_of(const Tensor& data, const Tensor* scales) {
  for (const formats::WeightFormat* format : formats::all_formats()) {
    const bool scaled = format->block_in != 0;
    if (format->data_dtype != data.dtype() || scaled != (scales != nullptr)) continue;
    // Float scales come in any precision; packed ones name the format by their dtype.
    if (!scaled || format->scale_dtype == scales->dtype() || format->scale_dtype == DType::kF32) {
      return format;
    }
  }
  return nullptr;
}

}  // namespace

std::vector<InventoryRow> inventory(const Checkpoint& files) {
  std::map<std::pair<std::string, std::string>, InventoryRow> rows;
  for (const std::string& name : files.names()) {
    if (!owner_of(files, name).empty()) continue;  // counted with its weight
    const Tensor& data = *files.find(name);
    const Tensor* scales = files.find(name + "_scale");
    const formats::WeightFormat* format = format_of(data, scales);
    std::string label(format != nullptr ? format->name : dtype_name(data.dtype()));
    if (format == nullptr && scales != nullptr) {
      label += fmt::format(" + {} scales", dtype_name(scales->dtype()));
    }
    InventoryRow& row = rows[{group_of(name), label}];
    row.group = group_of(name);
    row.format = label;
    row.tensors += 1;
    row.bytes += data.bytes() + (scales != nullptr ? scales->bytes() : 0);
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
