// What the messages, bytes and counters of connections have to be, whatever happens to them on their way. One thread
// runs all processes, so that both sides of a connection share one of these.
#pragma once

#include "world.hpp"

#include <verbena/rdma_types.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace verbena::sim {

/// What a client wants of the server that gets its message.
struct Request {
  enum class Kind : std::uint8_t { kNone, kEcho, kWrite, kWriteImmediate, kRead, kNamed, kPhysical, kAdd, kClose };
  static constexpr std::size_t kKinds = 9;
  Kind kind = Kind::kNone;
  std::size_t offset = 0;  ///< Of a window, and so many bytes.
  std::size_t length = 0;
};

class Region;

inline constexpr std::size_t kPage = 4096;
/// Bytes of a region.
struct Part {
  std::size_t offset = 0;
  std::size_t length = 0;
};
/// What a range of physical addresses is in a region that begins at an even page: each two pages are exchanged there.
[[nodiscard]] std::vector<Part> parts_of_physical(std::size_t offset, std::size_t length);

/// Messages of one direction of one connection, by one sender at a time.
class Stream {
 public:
  enum class State : std::uint8_t {
    kUnderWay,  ///< The call has not returned.
    kAccepted,  ///< It has to arrive, unless the connection is lost.
    kGivenUp,   ///< It must not arrive.
    kUnknown,   ///< The connection has ended.
  };
  struct Note {
    rdma::Message::Kind kind = rdma::Message::Kind::kSent;
    std::optional<std::uint32_t> immediate{};
    std::size_t length = 0;
    std::size_t offset = 0;  ///< kWritten: in the window.
    Request request{};
    Region* region = nullptr;  ///< kWritten: where the bytes are, as the write of this number.
    std::uint64_t write = 0;
    State state = State::kUnderWay;
    bool is_taken = false;
  };
  explicit Stream(std::uint64_t number) noexcept : number_(number) {}

  /// A message is about to be sent: its place.
  std::size_t begin(const Note& note);
  void fill(std::size_t place, std::span<std::byte> bytes) const;
  /// What its call has returned. What is wrong with that, or nothing.
  [[nodiscard]] std::string end(std::size_t place, Status status);
  /// A message has arrived: null, and `wrong` says why, where it is not the next one. `window` is where writes arrive.
  [[nodiscard]] const Note* take(const rdma::Message& message, std::span<const std::byte> window, std::string& wrong);
  /// The next message has this length, as far as anybody can know.
  [[nodiscard]] bool may_be_next(std::size_t length) const;
  /// The connection has ended in order: what was accepted and did not arrive, or nothing.
  [[nodiscard]] std::string missing() const;
  /// The connection has ended, and its receiver says that it has dropped so many messages: what is wrong with that, or
  /// nothing. `is_whole`: all that was accepted has arrived.
  [[nodiscard]] std::string check_count(std::uint64_t dropped, bool is_whole) const;
  [[nodiscard]] std::size_t taken() const noexcept { return taken_; }

 private:
  [[nodiscard]] bool is(std::size_t place, const rdma::Message& message, std::span<const std::byte> window) const;

  std::uint64_t number_;
  std::deque<Note> notes_;
  std::size_t next_ = 0;
  std::size_t taken_ = 0;
};

/// Bytes that one writer changes and many read.
class Region {
 public:
  explicit Region(std::span<std::byte> memory) noexcept : memory_(memory) {}
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }

  /// A write by a connection is about to begin: its number. 0 as the connection is the owner himself.
  std::uint64_t begin_write(std::size_t offset, std::size_t length, std::uint64_t link);
  void fill(std::uint64_t write, std::span<std::byte> bytes) const;
  /// Its call has returned, and it comes before whatever its connection does later.
  void accept_write(std::uint64_t write);
  /// It is there; or nobody knows.
  void end_write(std::uint64_t write, bool is_there);
  /// The owner writes.
  void write_here(std::size_t offset, std::size_t length);

  std::uint64_t begin_read() {
    reads_.insert(++clock_);
    return clock_;
  }
  /// What is wrong with bytes that a connection has read since, or nothing; none were read where they are empty.
  [[nodiscard]] std::string end_read(std::uint64_t read, std::size_t offset, std::span<const std::byte> bytes,
                                     std::uint64_t link = 0);
  /// The owner looks.
  [[nodiscard]] std::string look(std::size_t offset, std::size_t length) {
    return end_read(begin_read(), offset, memory_.subspan(offset, length));
  }

 private:
  struct Write {
    std::uint64_t number = 0;  ///< Also when it began.
    std::size_t offset = 0;
    std::size_t end_offset = 0;
    std::uint64_t link = 0;
    std::uint64_t end = 0;  ///< When its call returned; 0: it has not.
    std::uint64_t accepted = 0;
    bool is_there = false;
  };
  [[nodiscard]] static bool is_before(const Write& write, const Write& other) noexcept;
  [[nodiscard]] const Write& find(std::uint64_t number) const;
  struct Read {
    std::uint64_t begin = 0;
    std::uint64_t link = 0;
    [[nodiscard]] bool has_to_see(const Write& write) const noexcept {
      if (write.is_there && write.end < begin) return true;
      return write.accepted != 0 && write.accepted < begin && write.link == link;
    }
  };
  [[nodiscard]] static std::string check_part(const Read& read, std::span<const Write* const> near, std::size_t offset,
                                              std::span<const std::byte> bytes);
  void forget_old();

  std::span<std::byte> memory_;
  std::vector<Write> writes_;
  std::set<std::uint64_t> reads_;  ///< That are under way: when they began.
  std::uint64_t clock_ = 0;
};

/// A word that everybody adds to, by numbers above 0.
class Sum {
 public:
  struct Add {
    std::uint64_t delta = 0;
    std::uint64_t least = 0;  ///< Was there when it began.
  };
  [[nodiscard]] Add begin(std::uint64_t delta) {
    begun_ += delta;
    unknown_.insert(delta);
    return {delta, there_};
  }
  [[nodiscard]] std::string end(const Add& add, std::uint64_t old);
  /// It was not done.
  void refuse(const Add& add) {
    begun_ -= add.delta;
    unknown_.erase(unknown_.find(add.delta));
  }
  /// In the end: all that are known, and some of the others.
  [[nodiscard]] std::string check(std::uint64_t value) const;

 private:
  std::uint64_t begun_ = 0;
  std::uint64_t there_ = 0;
  std::multiset<std::uint64_t> unknown_;  ///< That have not returned, or without saying what was there.
  std::set<std::uint64_t> olds_;
};

/// A word that everybody exchanges for a value that nobody used before.
class Swaps {
 public:
  /// For a swap that is about to begin.
  [[nodiscard]] std::uint64_t begin() {
    begun_.insert(++last_);
    return last_;
  }
  [[nodiscard]] std::string end(std::uint64_t expected, std::uint64_t desired, std::uint64_t old);
  void refuse(std::uint64_t desired) { begun_.erase(desired); }
  [[nodiscard]] std::string check(std::uint64_t value) const;

 private:
  [[nodiscard]] bool is_known(std::uint64_t value) const { return value == 0 || begun_.contains(value); }
  std::uint64_t last_ = 0;
  std::set<std::uint64_t> begun_;  ///< Values that were put there, or may have been.
  std::set<std::uint64_t> used_;   ///< Values that were exchanged for others.
};

}  // namespace verbena::sim
