// A server's statistics for people, for programs and for Prometheus.
#pragma once

#include <verbena/kv.hpp>

#include <string>

namespace verbena::programs {

/// Several lines for people.
[[nodiscard]] std::string statistics_text(const kv::ServerStatistics& statistics);
/// Activity in the `seconds` between two snapshots: rates and times of that interval, and the state at its end.
[[nodiscard]] std::string interval_text(const kv::ServerStatistics& before, const kv::ServerStatistics& after,
                                        double seconds);
/// One JSON object and a line break.
[[nodiscard]] std::string statistics_json(const kv::ServerStatistics& statistics);

/// Prometheus' text exposition format, version 0.0.4. \thread any; no worker waits for it
[[nodiscard]] std::string metrics_text(const kv::Server& server, unsigned workers);

}  // namespace verbena::programs
