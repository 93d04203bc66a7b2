// The two hellos of verbena-perf's handshake.
#include "programs/perf_wire.hpp"
#include "input.hpp"

namespace verbena::fuzz {
namespace {

using namespace programs;
using perf_wire::LinkHello;
using perf_wire::RunHello;

enum class Form : std::uint8_t { kBytes, kFields, kEnd };

constexpr RunHello kRun{.in_flight = 1, .session = 1, .bytes = 64, .rounds = 1};

template <class Hello>
Bytes bytes_of(const Hello& hello) noexcept {
  return std::as_bytes(std::span(&hello, 1));
}

void check(Bytes bytes) {
  const Tight copy(bytes);
  if (const auto run = perf_wire::decode_run(copy.bytes())) {
    VERBENA_CHECK(run->bytes >= 1 && run->bytes <= perf_wire::most_bytes(run->test));
    VERBENA_CHECK(run->in_flight >= 1 && run->in_flight <= perf_wire::kMaxInFlight);
    VERBENA_CHECK(run->rounds >= 1 && run->rounds <= perf_wire::kMaxRounds && run->session != 0);
    VERBENA_CHECK(same_bytes(bytes_of(*run), copy.bytes()));
  }
  if (const auto link = perf_wire::decode_link(copy.bytes(), kRun)) {
    VERBENA_CHECK(link->session == kRun.session && link->length == kRun.bytes);
    VERBENA_CHECK(link->address + link->length >= link->address);
    VERBENA_CHECK(same_bytes(bytes_of(*link), copy.bytes()));
  }
}

/// Magic number and version right, and any bytes behind.
void check_fields(Bytes fields) {
  constexpr std::size_t kFront = offsetof(RunHello, kind);
  static_assert(kFront == offsetof(LinkHello, kind));
  Tight hello(kFront + fields.size());
  std::ranges::copy(bytes_of(kRun).first(kFront), hello.writable().begin());
  std::ranges::copy(fields, hello.writable().begin() + kFront);
  check(hello.bytes());
}

void run(Input in) {
  switch (static_cast<Form>(in.take<std::uint8_t>() % static_cast<std::uint8_t>(Form::kEnd))) {
    case Form::kBytes: return check(in.rest());
    case Form::kFields: return check_fields(in.rest());
    case Form::kEnd: return;
  }
}

}  // namespace
}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::run({data, size});
  return 0;
}
