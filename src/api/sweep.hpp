// A sweep: the times of puts and gets of values of growing length, each value compared as it comes back.
#pragma once

#include <verbena/kv.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace verbena::api {

/// Times of one length.
struct SweepRow {
  std::size_t bytes = 0;   ///< Bytes of a value.
  std::uint64_t puts = 0;  ///< Puts in `put_seconds`.
  std::uint64_t gets = 0;  ///< Gets in `get_seconds`.
  double put_seconds = 0;  ///< Time of all puts.
  double get_seconds = 0;  ///< Time of all gets.

  [[nodiscard]] double put_us() const noexcept { return put_seconds * 1e6 / static_cast<double>(puts); }
  [[nodiscard]] double get_us() const noexcept { return get_seconds * 1e6 / static_cast<double>(gets); }
  /// In MiB/s.
  [[nodiscard]] double put_rate() const noexcept { return static_cast<double>(bytes * puts) / put_seconds / kMebibyte; }
  [[nodiscard]] double get_rate() const noexcept { return static_cast<double>(bytes * gets) / get_seconds / kMebibyte; }

 private:
  static constexpr double kMebibyte = 1 << 20;
};

/// Measures by blocking calls over one connection, under a key of its own. \thread owner  \alloc setup
class Sweep {
 public:
  static constexpr std::size_t kLeastBytes = 1;
  static constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  /// For the head of a table, whose lines `text` makes.
  static constexpr const char* kHead = "     bytes      set MiB/s      get MiB/s         set us         get us\n";

  /// Values of up to `most_bytes`, in memory of the client where it has so much.
  Sweep(kv::Client& client, std::size_t most_bytes);
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;
  /// Erases the key.
  ~Sweep();

  /// Puts, then gets, values of `bytes`, each for `time` and at least once. On failure the operation's outcome, and
  /// `row` is unspecified; kProtocol: a get returned something else than what was put.
  [[nodiscard]] kv::Outcome measure(std::size_t bytes, std::chrono::nanoseconds time, SweepRow& row) noexcept;

  /// A line of the table.
  [[nodiscard]] static std::string text(const SweepRow& row);

 private:
  template <class Operation>
  [[nodiscard]] kv::Outcome repeat(std::chrono::nanoseconds time, std::uint64_t& times, double& seconds,
                                   Operation&& operation) noexcept;
  [[nodiscard]] kv::Key key() const noexcept { return std::as_bytes(std::span(key_)); }
  [[nodiscard]] std::span<std::byte> memory(std::size_t bytes, std::vector<std::byte>& otherwise);

  kv::Client& client_;
  std::string key_;
  std::vector<std::byte> own_value_, own_got_;
  std::span<std::byte> value_, got_;
};

}  // namespace verbena::api
