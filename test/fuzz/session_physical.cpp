// The table of physical addresses that a peer sends, and look-ups in whatever was accepted.
#include "base/hash.hpp"
#include "input.hpp"
#include "session/physical_table.hpp"

#include <vector>

namespace verbena::fuzz::session_physical {
namespace {

using session::PhysicalRun;
using session::PhysicalTable;

enum class Form : std::uint8_t { kBytes, kSealed, kRuns, kEnd };

/// What a look-up says must be what a walk over the runs says.
void check_find(const PhysicalTable& table, std::uint64_t address, std::uint64_t length, std::size_t first) {
  std::size_t index = first;
  const Status found = table.find(address, length, index);
  VERBENA_CHECK(index < table.size());
  std::uint64_t covered = 0;  // From `address` on, without a gap.
  bool touches = false;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const PhysicalRun& run = table.run(i);
    const std::uint64_t at = address + covered;
    touches = touches || (address >= run.address && address - run.address <= run.length);
    if (at >= run.address && at - run.address < run.length) covered += run.length - (at - run.address);
  }
  VERBENA_CHECK((found == Status::kOk) == (touches && length <= covered));
  if (found != Status::kOk || length == 0) return;
  VERBENA_CHECK(address >= table.run(index).address && address - table.run(index).address < table.run(index).length);
}

void check_table(const PhysicalTable& table) {
  VERBENA_CHECK(table.size() >= 1 && table.size() <= PhysicalTable::kMaxRuns);
  VERBENA_CHECK((table.access() & ~PhysicalTable::kRights) == 0);
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const nic::Window window = table.window(i);
    VERBENA_CHECK(window.length != 0 && window.address >= end && window.address + window.length > window.address);
    end = window.address + window.length;
  }
  constexpr std::size_t kLookedAt = 8;  // The walk is as long as the table: this is quadratic.
  for (std::size_t i = 0; i < std::min(table.size(), kLookedAt); ++i) {
    const PhysicalRun run = table.run(i);
    for (const std::uint64_t address : {run.address - 1, run.address, run.address + run.length - 1,
                                        run.address + run.length, run.address + run.length + 1}) {
      for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, run.length,
                                         run.length + 1, ~run.address, ~std::uint64_t{0}})
        check_find(table, address, length, (i * 3) % table.size());
    }
  }
}

void check(Bytes bytes) {
  const Tight copy(bytes);
  const auto table = PhysicalTable::decode(copy.bytes());
  if (!table) {
    VERBENA_CHECK(table.error().status() == Status::kProtocol);
    return;
  }
  check_table(*table);
  VERBENA_CHECK(same_bytes(table->encode(), copy.bytes()));
}

/// Magic number, version and checksum right, and any bytes between.
void check_sealed(Bytes fields) {
  const auto good = PhysicalTable::make({{.address = 4096, .length = 4096, .rkey = 1}}, 0, 0);
  VERBENA_CHECK(good.has_value());
  constexpr std::size_t kFront = 6;
  const std::size_t checked = kFront + fields.size();
  Tight sealed(checked + PhysicalTable::kChecksumBytes);
  std::ranges::copy(Bytes(good->encode()).first(kFront), sealed.writable().begin());
  std::ranges::copy(fields, sealed.writable().begin() + kFront);
  const std::uint64_t sum = hash64(sealed.bytes().first(checked));
  std::memcpy(sealed.writable().data() + checked, &sum, sizeof sum);
  check(sealed.bytes());
}

/// Runs as an exporter would hand them over, in any order.
void check_runs(Input in) {
  const auto access = in.take<std::uint32_t>();
  std::vector<PhysicalRun> runs;
  while (!in.empty() && runs.size() < 64) {
    // Small numbers, so that runs meet.
    const auto address = in.take<std::uint16_t>();
    const auto length = in.take<std::uint8_t>();
    runs.push_back({.address = address, .length = length, .rkey = static_cast<std::uint32_t>(runs.size())});
  }
  const auto table = PhysicalTable::make(runs, access, 1);
  if (!table) return;
  VERBENA_CHECK(table->size() == runs.size());
  check_table(*table);
  const auto again = PhysicalTable::decode(table->encode());
  VERBENA_CHECK(again.has_value() && same_bytes(again->encode(), table->encode()));
}

void run(Input in) {
  switch (static_cast<Form>(in.take<std::uint8_t>() % static_cast<std::uint8_t>(Form::kEnd))) {
    case Form::kBytes: return check(in.rest());
    case Form::kSealed: return check_sealed(in.rest());
    case Form::kRuns: return check_runs(in);
    case Form::kEnd: return;
  }
}

}  // namespace
}  // namespace verbena::fuzz::session_physical

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::session_physical::run({data, size});
  return 0;
}
