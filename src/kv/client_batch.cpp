// Batches: many gets or puts in one call, as many in flight as the client has operations.
#include "kv/client.hpp"

#include <algorithm>
#include <utility>

namespace verbena::kv {

// A request that is not settled has outcome kAgain meanwhile, and version kSkipsReads if READs were tried.
namespace {
constexpr std::uint64_t kSkipsReads = 1;
}  // namespace

void PollingClient::get(std::span<GetRequest> requests, Deadline deadline) noexcept {
  bool is_over = true;
  for (std::size_t from = 0; from < requests.size(); from += Reader::kMostAtOnce) {
    const std::span some = requests.subspan(from, std::min(Reader::kMostAtOnce, requests.size() - from));
    Reader::Left left{.by_queue = ~std::uint32_t{0}};
    if (way_.reads_now && !way_.is_guarded && !has_failed()) left = reader_.get_some(some, deadline);
    if ((left.by_message | left.by_queue) == 0) [[likely]]
      continue;
    is_over = false;
    for (std::size_t i = 0; i < some.size(); ++i) {
      if ((left.by_queue >> i & 1) != 0) some[i].outcome = {Status::kAgain};
      if ((left.by_message >> i & 1) != 0) some[i].outcome = {Status::kAgain, kSkipsReads};
    }
  }
  report_reads(kReadsPerReport);
  if (is_over) return;
  run_batch(requests, deadline);
  for (GetRequest& request : requests)
    if (request.outcome.status == Status::kAgain) request.outcome.version = 0;
}

void PollingClient::put(std::span<PutRequest> requests, Deadline deadline) noexcept {
  for (PutRequest& request : requests) request.outcome = {Status::kAgain};
  run_batch(requests, deadline);
  // These found memory still in its grace period; the blocking call waits for that.
  for (PutRequest& request : requests)
    if (request.outcome.status == Status::kAgain)
      request.outcome = put(request.key, request.value, request.options, deadline);
}

// False: there is no room for it now. Otherwise its outcome is set, or will be.
bool PollingClient::start_one(GetRequest& request, Deadline) noexcept {
  return start_in_batch({.op = wire::Op::kGet,
                         .key = request.key,
                         .out = request.out,
                         .result = &request.outcome,
                         .skips_reads = request.outcome.version == kSkipsReads});
}

bool PollingClient::start_one(PutRequest& request, Deadline deadline) noexcept {
  if (request.value.size() >= kEagerBytes && !is_registered(request.value)) {
    // Goes through the loop's chunks, in a call of its own; the others proceed meanwhile.
    request.outcome = put(request.key, request.value, request.options, deadline);
    return true;
  }
  Ask ask{.op = wire::Op::kPut, .key = request.key, .value = request.value, .result = &request.outcome};
  if (const Status status = take_options(request.options, ask); status != Status::kOk) [[unlikely]] {
    request.outcome = {status};
    return true;
  }
  return start_in_batch(ask);
}

bool PollingClient::start_in_batch(const Ask& ask) noexcept {
  Operation* operation = nullptr;
  Status status = check(ask);
  if (status == Status::kOk) status = start(ask, operation);
  if (status == Status::kAgain) return false;
  if (status == Status::kOk) {
    ++in_flight_.batched;
  } else {
    *ask.result = {status};
  }
  return true;
}

template <class Request>
void PollingClient::run_batch(std::span<Request> requests, Deadline deadline) noexcept {
  if (is_forked()) [[unlikely]] {
    for (Request& request : requests) request.outcome = {Status::kForked};
    return;
  }
  std::size_t next = 0;
  for (;;) {
    for (auto& channel : channels_) channel->hold();
    while (next < requests.size() &&
           (requests[next].outcome.status != Status::kAgain || start_one(requests[next], deadline)))
      ++next;
    for (auto& channel : channels_) channel->release();
    if (next == requests.size() && in_flight_.batched == 0) break;
    // Does not wait for slots that only the caller's own `poll` frees.
    if (in_flight_.batched == 0 && in_flight_.pipelined == operations_.size()) return;
    const bool is_late = loop_->wait(deadline) == 0 && deadline.passed();
    drain();
    if (!is_late || has_failed()) continue;
    give_up_batch();
    for (; next < requests.size(); ++next)
      if (requests[next].outcome.status == Status::kAgain) requests[next].outcome = {Status::kTimedOut};
  }
  // No request was started, because the connection had already failed.
  drain();
}

// The deadline passed: ends each request like a single call.
void PollingClient::give_up_batch() noexcept {
  const auto is_ours = [](const Operation& operation) { return operation.result != nullptr; };
  if (std::ranges::any_of(operations_, [&](const Operation& one) { return is_ours(one) && uses_memory(one); })) {
    die_late();
    drain();
  }
  for (Operation& operation : operations_)
    if (is_ours(operation)) {
      *std::exchange(operation.result, nullptr) = {Status::kTimedOut};
      abandon(operation);
    }
  in_flight_.batched = 0;
}

}  // namespace verbena::kv
