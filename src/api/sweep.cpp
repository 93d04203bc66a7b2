#include "api/sweep.hpp"

#include "base/error.hpp"
#include "base/ticks.hpp"

#include <unistd.h>

#include <algorithm>

namespace verbena::api {

// Two sweeps of one store at a time have keys of their own.
Sweep::Sweep(kv::Client& client, std::size_t most_bytes)
    : client_(client),
      key_(fmt::format("verbena sweep {} {:x}", ::getpid(), ticks_now())),
      value_(memory(most_bytes, own_value_)),
      got_(memory(most_bytes, own_got_)) {}

Sweep::~Sweep() { (void)client_.erase(key()); }

std::span<std::byte> Sweep::memory(std::size_t bytes, std::vector<std::byte>& otherwise) {
  if (const std::span<std::byte> registered = client_.allocate(bytes); !registered.empty()) return registered;
  otherwise.resize(bytes);
  return otherwise;
}

template <class Operation>
kv::Outcome Sweep::repeat(std::chrono::nanoseconds time, std::uint64_t& times, double& seconds,
                          Operation&& operation) noexcept {
  const std::uint64_t begin = ticks_now(), end = begin + ticks_in(time);
  std::uint64_t now = begin;
  for (times = 0; times == 0 || now < end; ++times) {
    const kv::Outcome outcome = operation();
    if (outcome.status != Status::kOk) return outcome;
    now = ticks_now();
  }
  seconds = std::max(static_cast<double>(now - begin) / ticks_per_us() / 1e6, 1e-9);
  return {};
}

kv::Outcome Sweep::measure(std::size_t bytes, std::chrono::nanoseconds time, SweepRow& row) noexcept {
  row.bytes = bytes;
  const std::span<std::byte> value = value_.first(bytes), got = got_.first(bytes);
  std::ranges::fill(value, static_cast<std::byte>('a' + bytes % 23));
  std::ranges::fill(got, std::byte{});
  kv::Outcome outcome = repeat(time, row.puts, row.put_seconds, [&] { return client_.put(key(), value); });
  if (outcome.status != Status::kOk) return outcome;
  outcome = repeat(time, row.gets, row.get_seconds, [&] { return client_.get(key(), got); });
  if (outcome.status != Status::kOk) return outcome;
  return {.status = std::ranges::equal(value, got) ? Status::kOk : Status::kProtocol};
}

std::string Sweep::text(const SweepRow& row) {
  return fmt::format("{:>10} {:>14.3f} {:>14.3f} {:>14.3f} {:>14.3f}\n", row.bytes, row.put_rate(), row.get_rate(),
                     row.put_us(), row.get_us());
}

}  // namespace verbena::api
