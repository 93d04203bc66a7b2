#include "api/counted_values.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace verbena::api {
namespace {

/// In the upper 16 bits of a count, so that a value without one is noticed: few begin with these bytes.
constexpr std::uint64_t kMark = std::uint64_t{0xC0DE} << 48;
constexpr std::uint64_t kMostCount = (std::uint64_t{1} << 48) - 1;

/// False: there is no memory.
bool make_room(std::vector<std::byte>& memory, std::size_t bytes) noexcept {
  if (bytes <= memory.size()) return true;
  try {
    memory.resize(bytes);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool another_was_first(Status status) noexcept {
  return status == Status::kVersionMismatch || status == Status::kNotFound;
}

}  // namespace

CountedValues::Stored CountedValues::read(kv::Client& client, kv::Key key, Deadline deadline) noexcept {
  if (!make_room(read_, kv::kEagerBytes)) return {.outcome = {.status = Status::kNoMemory}};
  kv::Outcome outcome = client.get(key, read_, deadline);
  while (outcome.status == Status::kBufferTooSmall) {
    if (deadline.passed()) return {.outcome = {.status = Status::kTimedOut}};
    if (!make_room(read_, outcome.length)) return {.outcome = {.status = Status::kNoMemory}};
    outcome = client.get(key, read_, deadline);
  }
  if (outcome.status != Status::kOk) return {.outcome = outcome};
  std::uint64_t word = 0;
  if (outcome.length >= kCountBytes) std::memcpy(&word, read_.data(), kCountBytes);
  if ((word & ~kMostCount) != kMark) return {.outcome = {.status = Status::kWrongKind}};
  return {.outcome = outcome, .count = word & kMostCount};
}

bool CountedValues::prepare(std::span<const std::byte> value) noexcept {
  written_.clear();
  if (!make_room(written_, kCountBytes + value.size())) return false;
  std::ranges::copy(value, written_.begin() + kCountBytes);
  return true;
}

kv::Outcome CountedValues::write(kv::Client& client, kv::Key key, const Stored& old, Deadline deadline) noexcept {
  const bool is_new = old.outcome.status == Status::kNotFound;
  const std::uint64_t count = is_new ? 1 : old.count + 1;
  if (count > kMostCount) return {.status = Status::kLimit};
  const std::uint64_t word = kMark | count;
  std::memcpy(written_.data(), &word, kCountBytes);
  kv::Outcome outcome = client.cas(key, is_new ? 0 : old.outcome.version, written_, deadline);
  if (outcome.status == Status::kOk) outcome.version = count;
  return outcome;
}

kv::Outcome CountedValues::put(kv::Client& client, kv::Key key, std::span<const std::byte> value,
                               Deadline deadline) noexcept {
  if (!prepare(value)) return {.status = Status::kNoMemory};
  for (;;) {
    const Stored old = read(client, key, deadline);
    if (old.outcome.status != Status::kOk && old.outcome.status != Status::kNotFound) return old.outcome;
    const kv::Outcome outcome = write(client, key, old, deadline);
    if (!another_was_first(outcome.status)) return outcome;
    if (deadline.passed()) return {.status = Status::kTimedOut};
  }
}

kv::Outcome CountedValues::get(kv::Client& client, kv::Key key, std::span<const std::byte>& value,
                               Deadline deadline) noexcept {
  const Stored stored = read(client, key, deadline);
  if (stored.outcome.status != Status::kOk) return stored.outcome;
  value = std::span(read_).subspan(kCountBytes, stored.outcome.length - kCountBytes);
  return {.status = Status::kOk, .version = stored.count, .length = value.size()};
}

kv::Outcome CountedValues::cas(kv::Client& client, kv::Key key, std::uint64_t expected,
                               std::span<const std::byte> value, Deadline deadline) noexcept {
  if (!prepare(value)) return {.status = Status::kNoMemory};
  for (;;) {
    const Stored old = read(client, key, deadline);
    if (old.outcome.status != Status::kOk) return old.outcome;
    if (old.count != expected) return {.status = Status::kVersionMismatch, .version = old.count};
    const kv::Outcome outcome = write(client, key, old, deadline);
    if (!another_was_first(outcome.status)) return outcome;
    if (deadline.passed()) return {.status = Status::kTimedOut};
  }
}

}  // namespace verbena::api
