// One line chart as inline SVG: categories along x (concurrencies double, positions count up),
// a zero-based y axis with round ticks, direct labels at the lines' ends, a tooltip on every mark.
// Colours and inks come from the page's CSS classes, so light and dark are the page's business.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace eyrie::bench {

struct ChartSeries {
  std::string name;
  int color = 0;        // class s0 … s7
  bool dashed = false;  // a second figure of the same configuration (p99 beside p50)
  std::vector<std::optional<double>> values;  // one a category; gaps stay gaps
};

struct LineChart {
  std::string title;
  std::string x_label, y_label;
  std::vector<std::string> categories;
  std::vector<ChartSeries> series;
  double y_max = 0.0;  // 0 = from the values
};

std::string line_chart_svg(const LineChart& chart);

// For text and attribute values.
std::string escape_html(const std::string& text);

// Rising round numbers from 0 that cover max: 0, 50, 100, 150.
std::vector<double> round_ticks(double max);

}  // namespace eyrie::bench
