// Gets of a client: by READs of the index, items and large values, and what replies to gets by message bring.
#pragma once

#include "kv/links.hpp"
#include "kv/operation.hpp"
#include "kv/reader.hpp"

#include <cstdint>

namespace verbena::kv {

class Scans;

/// Each operation has a place for the bytes of buckets and items. reader.cpp does the same where READs need no queue.
/// \thread owner  \alloc none
class Gets {
 public:
  Gets(Links& links, Requests& requests, Scans& scans) noexcept : links_(links), requests_(requests), scans_(scans) {}
  /// Call it once there is a connection.
  void open() noexcept { reads_now_ = links_.reads_now(); }

  [[nodiscard]] Reader& reader() noexcept { return reader_; }
  [[nodiscard]] Lookups& counts() noexcept { return counts_; }
  [[nodiscard]] const Lookups& counts() const noexcept { return counts_; }
  /// The NIC may carry out READs in this thread.
  [[nodiscard]] bool reads_now() const noexcept { return reads_now_; }

  /// Posts the READs of a get. False: ask by message.
  [[nodiscard]] bool start(Operation& operation) noexcept { return links_.may_read() && start_lookup(operation); }
  /// Notes the time that a reply tells, and the place of the key's item.
  void note(const Operation& operation, const wire::Reply& reply) noexcept {
    if (links_.may_read() || reply.expiry.until_ns != 0) take_note(operation, reply);
  }
  /// Goes on with a reply to a get. False: it fits no get.
  [[nodiscard]] bool take_reply(Operation& operation, const wire::Reply& reply) noexcept;

  // --- completions
  void on_lookup_read(Operation& operation) noexcept;
  void on_piece_read(Operation& operation) noexcept;
  void on_mark() noexcept { --marks_; }
  /// READs beyond the first of a get are over: they are counted for all gets together.
  void give_back_ahead(std::uint32_t count) noexcept { ahead_ -= count; }

 private:
  using Stage = Operation::Stage;
  using Way = Operation::Way;

  [[nodiscard]] std::byte* buckets_at(const Operation& operation) const noexcept {
    return links_.place(operation.slot());
  }
  [[nodiscard]] std::byte* item_at(const Operation& operation) const noexcept {
    return buckets_at(operation) + 2 * sizeof(Bucket);
  }
  [[nodiscard]] channel::Connection& channel_of(const Operation& operation) const noexcept {
    return links_.channel(operation.worker);
  }

  // Lookups.
  [[nodiscard]] bool start_lookup(Operation& operation) noexcept;
  [[nodiscard]] bool start_buckets(Operation& operation) noexcept;
  [[nodiscard]] bool start_item(Operation& operation, std::uint64_t entry, Way way) noexcept;
  void start_check(Operation& operation) noexcept;
  [[nodiscard]] bool start_fetch(Operation& operation, const channel::RemoteSpan& from, Stage stage) noexcept;
  void try_candidates(Operation& operation) noexcept;
  void take_item(Operation& operation) noexcept;
  void take_check(Operation& operation) noexcept;
  void end_lookup(Operation& operation) noexcept;
  void start_mark(const Operation& operation) noexcept;
  void on_overtaken(Operation& operation) noexcept;
  void ask_by_message(Operation& operation) noexcept;

  // Replies.
  void take_note(const Operation& operation, const wire::Reply& reply) noexcept;
  void take_value(Operation& operation, const wire::Reply& reply) noexcept;
  void take_location(Operation& operation, const wire::Reply& reply) noexcept;
  void take_part(Operation& operation, const wire::Reply& reply) noexcept;
  [[nodiscard]] bool expect(Operation& operation, const wire::Reply& reply, std::uint64_t length,
                            bool& goes_on) noexcept;
  void ask_again(Operation& operation) noexcept;
  void ask_for_part(Operation& operation) noexcept;

  // Large values.
  void start_reading(Operation& operation, std::uint64_t address, std::uint32_t rkey, std::uint64_t checksum) noexcept;
  void read_pieces(Operation& operation) noexcept;
  void end_read(Operation& operation) noexcept;

  Links& links_;
  Requests& requests_;
  Scans& scans_;
  bool reads_now_ = false;
  std::uint32_t ahead_ = 0;  ///< READs beyond the first of each get into registered memory, kMostAhead at most.
  std::uint32_t marks_ = 0;  ///< WRITEs of marks, kMostMarks at most.
  Lookups counts_;
  Reader reader_{counts_};
};

}  // namespace verbena::kv
