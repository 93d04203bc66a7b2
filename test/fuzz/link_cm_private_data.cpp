// The private data of RDMA CM's request, reply and reject.
#include "input.hpp"
#include "link/cm/private_data.hpp"

namespace verbena::fuzz::link_cm_private_data {
namespace {

using namespace link;
using namespace link::cm;

/// Any bytes; or those behind a front whose magic number and version are right.
enum class Form : std::uint8_t { kBytes, kFields, kEnd };

template <class T>
void check_error(const Result<T>& result) noexcept {
  if (result) return;
  VERBENA_CHECK(result.error().status() == Status::kProtocol);
  VERBENA_CHECK(*result.error().text() != '\0');
}

void check_hello(Bytes data) {
  Endpoint endpoint;
  const auto decoded = decode_cm_hello(data, endpoint);
  check_error(decoded);
  if (!decoded) return;
  VERBENA_CHECK(endpoint.private_bytes <= kMaxCmAnswerBytes && endpoint.recv_depth <= 0xFFFF);
  // What follows is the packet's padding.
  const PrivateData again = encode_cm_hello(endpoint);
  VERBENA_CHECK(again.size <= data.size() && same_bytes(again.bytes(), data.first(again.size)));
}

void check_reject(Bytes data) {
  const auto reject = decode_cm_reject(data);
  check_error(reject);
  if (!reject) return;
  VERBENA_CHECK(reject->status > Status::kOk && reject->status <= Status::kSystem);
  VERBENA_CHECK(std::ranges::all_of(reject->reason(), [](char c) { return c >= ' ' && c <= '~'; }));
  const auto again = decode_cm_reject(encode_cm_reject(reject->status, reject->reason()).bytes());
  VERBENA_CHECK(again && again->status == reject->status && again->reason() == reject->reason());
}

void run(Input in) {
  const auto form = static_cast<Form>(in.take<std::uint8_t>() % static_cast<std::uint8_t>(Form::kEnd));
  const Bytes rest = in.rest();
  const PrivateData whole = encode_cm_reject(Status::kRejected, "");
  const std::size_t front = form == Form::kFields ? 3 : 0;
  Tight data(front + rest.size());
  std::ranges::copy(whole.bytes().first(front), data.writable().begin());
  std::ranges::copy(rest, data.writable().begin() + static_cast<std::ptrdiff_t>(front));
  check_hello(data.bytes());
  check_reject(data.bytes());
}

}  // namespace
}  // namespace verbena::fuzz::link_cm_private_data

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::link_cm_private_data::run({data, size});
  return 0;
}
