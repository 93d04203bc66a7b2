// The three hellos of verbena-perf's handshake.
#include "programs/perf_wire.hpp"
#include "input.hpp"

namespace verbena::fuzz {
namespace {

using namespace programs;
using perf_wire::ChannelHello;
using perf_wire::LinkHello;
using perf_wire::RunHello;

enum class Form : std::uint8_t { kBytes, kFields, kEnd };

constexpr RunHello kRun{.session = 1, .bytes = 64, .connections = 3, .threads = 2};

template <class Hello>
Bytes bytes_of(const Hello& hello) noexcept {
  return std::as_bytes(std::span(&hello, 1));
}

void check_run(const RunHello& run, Bytes bytes) {
  const PerfTestFacts* facts = find_perf_test(run.test);
  VERBENA_CHECK(facts != nullptr && facts->by != PerfBy::kNothing);
  VERBENA_CHECK(run.bytes >= 1 && run.bytes <= facts->most_bytes && run.session != 0);
  VERBENA_CHECK(run.wait <= engine::WaitPolicy::kEvent);
  VERBENA_CHECK(run.depth >= 1 && run.depth <= perf_wire::kMaxDepth);
  VERBENA_CHECK(run.threads >= 1 && run.threads <= perf_wire::kMaxThreads);
  VERBENA_CHECK(run.connections >= 1 && run.connections <= perf_wire::kMaxConnections);
  VERBENA_CHECK(std::uint32_t{run.depth} * run.connections <= perf_wire::kMaxInFlight);
  VERBENA_CHECK(perf_wire::memory_needed(run) <= perf_wire::kMaxMemory);
  VERBENA_CHECK(same_bytes(bytes_of(run), bytes));
}

void check(Bytes bytes) {
  const Tight copy(bytes);
  if (const auto run = perf_wire::decode_run(copy.bytes())) check_run(*run, copy.bytes());
  if (const auto link = perf_wire::decode_link(copy.bytes(), kRun)) {
    VERBENA_CHECK(link->session == kRun.session && link->index < perf_wire::connections_of(kRun));
    const nic::Window window = perf_wire::window_of(*link, kRun);
    VERBENA_CHECK(window.length == kRun.bytes && window.address + window.length >= window.address);
    VERBENA_CHECK(same_bytes(bytes_of(*link), copy.bytes()));
  }
  if (const auto channel = perf_wire::decode_channel(copy.bytes(), kRun)) {
    VERBENA_CHECK(channel->session == kRun.session && channel->index < perf_wire::connections_of(kRun));
    VERBENA_CHECK(same_bytes(bytes_of(*channel), copy.bytes()));
  }
}

/// Magic number and version right, and any bytes behind.
void check_fields(Bytes fields) {
  constexpr std::size_t kFront = offsetof(RunHello, kind);
  static_assert(kFront == offsetof(LinkHello, kind) && kFront == offsetof(ChannelHello, kind));
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
