#include "programs/sweep.hpp"

#include "programs/compat.hpp"
#include "programs/environment.hpp"
#include "programs/files.hpp"
#include "programs/json.hpp"
#include "programs/options.hpp"
#include "programs/progress.hpp"

#include <verbena/version.h>

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

namespace verbena::programs {
namespace {

/// The drawing's measures, in its own units.
constexpr double kWidth = 720, kHeight = 440, kLeft = 70, kRight = 20, kTop = 40, kBottom = 60;

/// Places values on a logarithmic axis from `least` to `most`, whole decades or octaves.
class LogAxis {
 public:
  LogAxis(double least, double most, double from, double to)
      : least_(std::log2(least)),
        scale_((to - from) / std::max(std::log2(most) - std::log2(least), 1.0)),
        from_(from) {}
  [[nodiscard]] double at(double value) const noexcept { return from_ + (std::log2(value) - least_) * scale_; }

 private:
  double least_, scale_, from_;
};

/// 1000 for 999, 10 for 10.
double decade_above(double value) noexcept { return std::pow(10.0, std::ceil(std::log10(value))); }
double decade_below(double value) noexcept { return std::pow(10.0, std::floor(std::log10(value))); }

void append_line(std::string& svg, std::span<const api::SweepRow> rows, const LogAxis& x, const LogAxis& y,
                 double (api::SweepRow::*rate)() const noexcept, const char* colour) {
  append(svg, "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"", colour);
  for (const api::SweepRow& row : rows)
    append(svg, "{:.1f},{:.1f} ", x.at(static_cast<double>(row.bytes)), y.at((row.*rate)()));
  append(svg, "\"/>\n");
}

void append_grid(std::string& svg, std::span<const api::SweepRow> rows, const LogAxis& x, const LogAxis& y,
                 double least, double most) {
  for (const api::SweepRow& row : rows) {
    if (std::bit_width(row.bytes) % 4 != 1) continue;  // 1, 16, 256, ...
    const double at = x.at(static_cast<double>(row.bytes));
    append(svg, "<path d=\"M{:.1f} {} V{}\" stroke=\"#ddd\"/>\n", at, kTop, kHeight - kBottom);
    append(svg, "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", at, kHeight - kBottom + 18,
           human_bytes(row.bytes));
  }
  for (double rate = least; rate <= most * 1.01; rate *= 10) {
    append(svg, "<path d=\"M{} {:.1f} H{}\" stroke=\"#ddd\"/>\n", kLeft, y.at(rate), kWidth - kRight);
    append(svg, "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n", kLeft - 6, y.at(rate) + 4, rate);
  }
}

/// Measures all lengths into `rows`, and prints each as a line of the table if asked to. False after a complaint.
bool measure(kv::Client& client, const SweepArguments& arguments, std::size_t most, std::vector<api::SweepRow>& rows) {
  constexpr double kRows = 25;
  static_assert(api::Sweep::kMostBytes >> 24 == 1);
  const auto each = std::chrono::nanoseconds{static_cast<std::int64_t>(arguments.seconds / kRows / 2 * 1e9)};
  Progress bar("sweep");
  api::Sweep sweep(client, most);
  if (!arguments.json && write_out(api::Sweep::kHead) != Exit::kDone) return false;
  for (std::size_t bytes = api::Sweep::kLeastBytes; bytes <= most; bytes *= 2) {
    if (arguments.json && bar.due()) bar.draw(static_cast<double>(std::bit_width(bytes)) / kRows, human_bytes(bytes));
    api::SweepRow row;
    const kv::Outcome outcome = sweep.measure(bytes, each, row);
    if (outcome.status != Status::kOk) {
      bar.clear();
      complain("values of {} bytes: {}", bytes, explain(outcome, client.connection_error()));
      return false;
    }
    rows.push_back(row);
    if (!arguments.json && write_out(api::Sweep::text(row)) != Exit::kDone) return false;
  }
  bar.clear();
  return true;
}

}  // namespace

std::string sweep_svg(std::span<const api::SweepRow> rows) {
  double least = rows.front().put_rate(), most = least;
  for (const api::SweepRow& row : rows) {
    least = std::min({least, row.put_rate(), row.get_rate()});
    most = std::max({most, row.put_rate(), row.get_rate()});
  }
  least = decade_below(least);
  most = std::max(decade_above(most), least * 10);
  const LogAxis x(static_cast<double>(rows.front().bytes), static_cast<double>(rows.back().bytes), kLeft,
                  kWidth - kRight);
  const LogAxis y(least, most, kHeight - kBottom, kTop);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{}\" y=\"24\" font-size=\"15\">MiB/s of values by their length, one blocking call at a time</text>\n",
      kWidth, kHeight, kLeft);
  append_grid(svg, rows, x, y, least, most);
  append_line(svg, rows, x, y, &api::SweepRow::put_rate, "#c0392b");
  append_line(svg, rows, x, y, &api::SweepRow::get_rate, "#2471a3");
  append(svg, "<text x=\"{}\" y=\"{}\" fill=\"#c0392b\">put</text>\n", kLeft, kHeight - 12);
  append(svg, "<text x=\"{}\" y=\"{}\" fill=\"#2471a3\">get</text>\n</svg>\n", kLeft + 40, kHeight - 12);
  return svg;
}

std::string sweep_json(std::span<const api::SweepRow> rows) {
  const auto row_json = [](const api::SweepRow& row) {
    return json_object("bytes", row.bytes, "puts", row.puts, "gets", row.gets, "put_us", Fixed{row.put_us(), 4},
                       "get_us", Fixed{row.get_us(), 4}, "put_mib_per_s", Fixed{row.put_rate(), 4}, "get_mib_per_s",
                       Fixed{row.get_rate(), 4});
  };
  return json_line("sweep", json_array(rows, row_json), "environment", environment_json(read_environment()));
}

Exit run_sweep(const ConnectArguments& where, const SweepArguments& arguments) {
  if (!arguments.plot.empty())
    if (const auto replaceable = check_replaceable(arguments.plot); !replaceable)
      return error_exit("--plot: {}", replaceable.error().text());
  ConnectArguments to = where;
  to.options.buffer_bytes = 2 * (api::Sweep::kMostBytes + 64);
  const auto client = connect_or_complain(to);
  if (!client) return Exit::kError;
  const std::size_t most = std::min(api::Sweep::kMostBytes, std::bit_floor(client->max_value_bytes()));
  std::vector<api::SweepRow> rows;
  const bool whole = measure(*client, arguments, most, rows);
  if (whole && most < api::Sweep::kMostBytes)
    complain("the server takes values of at most {} bytes: the sweep ends there", client->max_value_bytes());
  if (!whole) return Exit::kError;
  if (arguments.json && write_out(sweep_json(rows)) != Exit::kDone) return Exit::kError;
  if (arguments.plot.empty()) return Exit::kDone;
  const auto written = replace_file(arguments.plot, sweep_svg(rows));
  return written ? Exit::kDone : error_exit("--plot: {}", written.error().text());
}

Exit run_sweep_client(int argc, char** argv) {
  ConnectArguments where;
  SweepArguments sweep;
  Exit exit = Exit::kDone;
  CLI::App app("Measures `application`, or any server of verbena-kv: puts and gets of values of 1 B to 16 MiB.\n",
               "client");
  app.set_version_flag("--version", "client " VERBENA_VERSION);
  app.add_option("SERVER", where.options.address, "the server's address or name (default: this host)");
  app.add_option("-p,--port", where.options.port, "the server's port")
      ->check(whole_number(1, 65535))
      ->capture_default_str();
  add_transport_options(app, where.options.transport);
  add_timeout(app, where.options, "how long to wait for the server");
  app.add_option("--plot", sweep.plot, "file for a drawing of the rates, in SVG")->type_name("FILE");
  app.add_option("--seconds", sweep.seconds, "how long to measure")
      ->check(positive_number(86'400))
      ->capture_default_str();
  app.add_flag("--json", sweep.json, "print one JSON object");
  app.callback([&] { exit = run_sweep(where, sweep); });
  return run_parsed(app, argc, argv, exit);
}

}  // namespace verbena::programs
