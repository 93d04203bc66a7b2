// What the two ends of verbena-perf tell each other.
#include "programs/perf_wire.hpp"
#include "input.hpp"

#include <algorithm>

namespace verbena::fuzz::perf_frames {
namespace {

using namespace programs;
using programs::perf_wire::Reply;
using programs::perf_wire::Request;

enum class Form : std::uint8_t { kBytes, kFields, kEnd };

void check_request(const Request& request, Bytes bytes) {
  VERBENA_CHECK(static_cast<std::size_t>(request.test) < perf_tests().size());
  const PerfTestFacts& facts = facts_of(request.test);
  VERBENA_CHECK(facts.has_peer() && request.connections <= perf_wire::kMaxConnections);
  VERBENA_CHECK(request.bytes >= 1 && request.bytes <= facts.most_bytes);
  VERBENA_CHECK(facts.has_size() || request.bytes == facts.bytes);
  VERBENA_CHECK(same_bytes(perf_wire::bytes_of(request), bytes));
}

void check_reply(const Reply& reply, std::uint32_t length, Bytes bytes) {
  VERBENA_CHECK(reply.serving <= perf_wire::Serving::kThread);
  VERBENA_CHECK(std::ranges::find(reply.refusal, '\0') != reply.refusal.end());
  VERBENA_CHECK(reply.physical + length >= reply.physical);
  VERBENA_CHECK(same_bytes(perf_wire::bytes_of(reply), bytes));
}

void check(Bytes bytes) {
  const Tight copy(bytes);
  if (const auto request = perf_wire::decode_request(copy.bytes())) check_request(*request, copy.bytes());
  for (const std::uint32_t length : {0U, 64U, kPerfMostMessage}) {
    if (const auto reply = perf_wire::decode_reply(copy.bytes(), length)) check_reply(*reply, length, copy.bytes());
  }
}

/// What is asked for, version and magic number right, and any bytes behind.
void check_fields(Bytes fields) {
  constexpr Request kRun;
  constexpr std::size_t kFront = offsetof(Request, test);
  static_assert(kFront == offsetof(Reply, serving));
  Tight message(kFront + fields.size());
  std::ranges::copy(perf_wire::bytes_of(kRun).first(kFront), message.writable().begin());
  std::ranges::copy(fields, message.writable().begin() + kFront);
  check(message.bytes());
}

void run(Input in) {
  switch (static_cast<Form>(in.take<std::uint8_t>() % static_cast<std::uint8_t>(Form::kEnd))) {
    case Form::kBytes: return check(in.rest());
    case Form::kFields: return check_fields(in.rest());
    case Form::kEnd: return;
  }
}

}  // namespace
}  // namespace verbena::fuzz::perf_frames

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::perf_frames::run({data, size});
  return 0;
}
