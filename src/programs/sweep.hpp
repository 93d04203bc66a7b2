// A sweep of value lengths as a program shows it: a table, JSON, and a drawing.
#pragma once

#include "programs/commands.hpp"

#include "api/sweep.hpp"

#include <span>
#include <string>

namespace verbena::programs {

/// What a sweep measures, and where its results go.
struct SweepArguments {
  double seconds = 3;  ///< For all lengths together.
  bool json = false;   ///< One JSON object instead of the table.
  std::string plot;    ///< File for a drawing in SVG; empty: none.
};

/// Measures puts and gets of 1 B to 16 MiB, or to the server's limit, each length twice the one before.
[[nodiscard]] Exit run_sweep(const ConnectArguments& where, const SweepArguments& arguments);

/// The rates over the lengths, both axes logarithmic. One row at least.
[[nodiscard]] std::string sweep_svg(std::span<const api::SweepRow> rows);
/// One JSON object on one line.
[[nodiscard]] std::string sweep_json(std::span<const api::SweepRow> rows);

}  // namespace verbena::programs
