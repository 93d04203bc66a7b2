// A server's statistics for people, for programs and for Prometheus.
#pragma once

#include <verbena/kv.hpp>

#include <string>

namespace verbena::programs {

/// Several lines for people.
[[nodiscard]] std::string statistics_text(const kv::ServerStatistics& statistics);
/// What happened in `seconds`, between two snapshots: rates and times of that interval, and what there is at its end.
[[nodiscard]] std::string interval_text(const kv::ServerStatistics& before, const kv::ServerStatistics& after,
                                        double seconds);
/// One JSON object, with its line's end.
[[nodiscard]] std::string statistics_json(const kv::ServerStatistics& statistics);

/// The text exposition format, version 0.0.4. \thread any; no worker waits for it
[[nodiscard]] std::string metrics_text(const kv::Server& server, unsigned workers);

}  // namespace verbena::programs
