#include "bench/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace eyrie::bench {
namespace {

// Pixels of the view box; the page scales it.
constexpr double kWidth = 560, kHeight = 300;
constexpr double kLeft = 56, kRight = 120, kTop = 12, kBottom = 44;
constexpr double kLabelGap = 14;  // least distance of two end labels

class Plot {
 public:
  explicit Plot(const LineChart& chart) : chart_(chart) {
    double max = chart.y_max;
    if (max <= 0.0) {
      for (const auto& series : chart.series) {
        for (const auto& value : series.values) max = std::max(max, value.value_or(0.0));
      }
    }
    ticks_ = round_ticks(max);
  }

  std::string svg() {
    out_ = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth,
                       kHeight, escape_html(chart_.title));
    axes();
    for (const auto& series : chart_.series) line(series);
    end_labels();
    return out_ + "</svg>\n";
  }

 private:
  double x(size_t category) const {
    const double span = kWidth - kLeft - kRight;
    const size_t n = chart_.categories.size();
    return n < 2 ? kLeft + span / 2
                 : kLeft + span * static_cast<double>(category) / static_cast<double>(n - 1);
  }
  double y(double value) const {
    return kHeight - kBottom - (kHeight - kTop - kBottom) * value / ticks_.back();
  }
  void text(double at_x, double at_y, const char* anchor, const char* css,
            const std::string& label) {
    out_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n",
                    at_x, at_y, anchor, css, escape_html(label));
  }

  void axes() {
    for (const double tick : ticks_) {
      out_ += fmt::format(
          "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", kLeft,
          kWidth - kRight, y(tick), y(tick), tick == 0.0 ? "axis" : "grid");
      text(kLeft - 8, y(tick) + 4, "end", "tick", fmt::format("{:g}", tick));
    }
    for (size_t i = 0; i < chart_.categories.size(); ++i) {
      text(x(i), kHeight - kBottom + 18, "middle", "tick", chart_.categories[i]);
    }
    text((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", "label", chart_.x_label);
  }

  void line(const ChartSeries& series) {
    std::string points;
    const auto flush = [&] {
      if (points.empty()) return;
      out_ += fmt::format("<polyline points=\"{}\" fill=\"none\" class=\"line s{}{}\"/>\n", points,
                          series.color, series.dashed ? " dashed" : "");
      points.clear();
    };
    for (size_t i = 0; i < series.values.size(); ++i) {
      if (!series.values[i]) {
        flush();
        continue;
      }
      points +=
          fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", x(i), y(*series.values[i]));
    }
    flush();
    for (size_t i = 0; i < series.values.size(); ++i) {
      if (!series.values[i]) continue;
      out_ += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" class=\"dot s{}{}\"><title>{}</title>"
          "</circle>\n",
          x(i), y(*series.values[i]), series.color, series.dashed ? " hollow" : "",
          escape_html(fmt::format("{}, {} {}: {:.4g} {}", series.name, chart_.x_label,
                                  chart_.categories[i], *series.values[i], chart_.y_label)));
    }
  }

  // Names at the last point, moved apart where lines end close together.
  void end_labels() {
    struct End {
      double x, y;
      const ChartSeries* series;
    };
    std::vector<End> ends;
    for (const auto& series : chart_.series) {
      for (size_t i = series.values.size(); i-- > 0;) {
        if (!series.values[i]) continue;
        ends.push_back({x(i), y(*series.values[i]), &series});
        break;
      }
    }
    std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) { return a.y < b.y; });
    for (size_t i = 1; i < ends.size(); ++i) {
      ends[i].y = std::max(ends[i].y, ends[i - 1].y + kLabelGap);
    }
    // Back up from the bottom edge when the stack grew past it.
    double limit = kHeight - kBottom;
    for (size_t i = ends.size(); i-- > 0;) {
      ends[i].y = std::min(ends[i].y, limit);
      limit = ends[i].y - kLabelGap;
    }
    for (const auto& end : ends) text(end.x + 10, end.y + 4, "start", "end", end.series->name);
  }

  const LineChart& chart_;
  std::vector<double> ticks_;
  std::string out_;
};

}  // namespace

std::string line_chart_svg(const LineChart& chart) { return Plot(chart).svg(); }

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> round_ticks(double max) {
  if (!(max > 0.0) || !std::isfinite(max)) max = 1.0;
  constexpr double kWanted = 4.0;
  const double raw = max / kWanted;
  const double magnitude = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10.0 * magnitude;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * magnitude >= raw * (1.0 - 1e-9)) {
      step = factor * magnitude;
      break;
    }
  }
  std::vector<double> ticks = {0.0};
  while (ticks.back() < max * (1.0 - 1e-9)) {
    ticks.push_back(step * static_cast<double>(ticks.size()));
  }
  return ticks;
}

}  // namespace eyrie::bench
