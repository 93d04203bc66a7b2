// Values with a version that their key counts for itself, from 1, as rdma_kv's: kept in front of the value.
#pragma once

#include <verbena/deadline.hpp>
#include <verbena/kv.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace verbena::api {

/// Values in a store that have a count in front of them, which each change of the key raises by 1. The server's own
/// version makes this safe among any number of clients: a change is a get and a cas, which is repeated when another
/// client was first. Clients of kv::Client see the count as the value's first 8 bytes.
///
/// A key that is erased and put again begins at 1 again, so a version may come twice; the server's own versions never
/// do. Outcomes are those of kv::Client, with the count as version; kWrongKind: the value has no count, because another
/// kind of client put it.
/// \thread owner  \alloc for values that are longer than any before
class CountedValues {
 public:
  /// Bytes of the count.
  static constexpr std::size_t kCountBytes = 8;

  /// Stores the value, with the count 1 where there is no such key. Costs a get of the old value, and a cas.
  [[nodiscard]] kv::Outcome put(kv::Client& client, kv::Key key, std::span<const std::byte> value,
                                Deadline deadline) noexcept;
  /// The value, in memory of this object: valid until its next call.
  [[nodiscard]] kv::Outcome get(kv::Client& client, kv::Key key, std::span<const std::byte>& value,
                                Deadline deadline) noexcept;
  /// Stores the value if the count is `expected`. kNotFound: there is no such key, whatever is expected.
  [[nodiscard]] kv::Outcome cas(kv::Client& client, kv::Key key, std::uint64_t expected,
                                std::span<const std::byte> value, Deadline deadline) noexcept;

 private:
  /// A value as it is in the store.
  struct Stored {
    kv::Outcome outcome;      ///< With the server's version.
    std::uint64_t count = 0;  ///< With kOk.
  };
  [[nodiscard]] Stored read(kv::Client& client, kv::Key key, Deadline deadline) noexcept;
  [[nodiscard]] bool prepare(std::span<const std::byte> value) noexcept;
  [[nodiscard]] kv::Outcome write(kv::Client& client, kv::Key key, const Stored& old, Deadline deadline) noexcept;

  std::vector<std::byte> read_;     ///< What was read last.
  std::vector<std::byte> written_;  ///< Count and value of a change.
};

}  // namespace verbena::api
