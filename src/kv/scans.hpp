// A client's requests that are not about one key: lists and flushes keys, asks for statistics, and reports gets by
// READs.
#pragma once

#include "kv/links.hpp"
#include "kv/operation.hpp"
#include "kv/statistics.hpp"

#include <cstdint>

namespace verbena::kv {

/// \thread owner  \alloc none
class Scans {
 public:
  /// `counts` has the gets by READs.
  Scans(Links& links, Requests& requests, const Lookups& counts) noexcept
      : links_(links), requests_(requests), counts_(counts) {}

  [[nodiscard]] Status keys(Key prefix, KeyCursor& cursor, KeyPage& page, Deadline deadline) noexcept {
    return scan(wire::Op::kKeys, prefix, cursor, page, deadline);
  }
  [[nodiscard]] Status flush(Key prefix, std::uint64_t& erased, Deadline deadline) noexcept;
  [[nodiscard]] Result<ServerStatistics> statistics(Deadline deadline) noexcept;
  /// Goes on with a reply to one of these. False: it fits none.
  [[nodiscard]] bool take_reply(Operation& operation, const wire::Reply& reply) noexcept;

  static constexpr std::uint64_t kReadsPerReport = 4096;
  /// Tells the server of gets by READs, if there are `least` that it has not been told of.
  void report_reads(std::uint64_t least = kReadsPerReport) noexcept {
    const std::uint64_t all = counts_.by_location + counts_.by_index;
    if (all - reported_ >= least) [[unlikely]]
      send_report(all);
  }

 private:
  [[nodiscard]] Status scan(wire::Op op, Key prefix, KeyCursor& cursor, KeyPage& page, Deadline deadline) noexcept;
  void take_scanned(Operation& operation, const wire::Reply& reply) noexcept;
  void send_report(std::uint64_t all) noexcept;

  Links& links_;
  Requests& requests_;
  const Lookups& counts_;
  std::uint64_t reported_ = 0;  ///< Gets by READs that the server was told of.
  struct {
    StatisticsPart part{};
    ServerStatistics* out = nullptr;
    KeyPage* page = nullptr;
    wire::ScanPlace next;
  } wanted_;  ///< The blocked call asks for this: a part of the statistics and where it goes, or where keys go and the
              ///< scan goes on.
};

}  // namespace verbena::kv
