// A client's operations: a fixed table of them, how they start, and how those who wait learn of their ends.
#pragma once

#include "channel/connection.hpp"
#include "kv/links.hpp"
#include "kv/operation.hpp"

#include <verbena/kv.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace verbena::kv {

class Gets;
class Puts;
class Scans;
class Words;

/// Blocking, pipelined and awaited calls, and batches. Each starts its operations with `start`, which is told how they
/// tell of their ends. \thread owner  \alloc none, unless it says otherwise
class Requests final : private channel::Handler {
 public:
  /// The parts go on with what the server answers.
  Requests(Links& links, Gets& gets, Puts& puts, Words& words, Scans& scans) noexcept
      : links_(links), gets_(gets), puts_(puts), words_(words), scans_(scans) {}
  /// Connects, and makes the table. \alloc setup
  [[nodiscard]] Result<void> connect();
  /// The client ends: tells everybody who still awaits something.
  void close() noexcept;

  // --- calls
  /// Blocks until the request is carried out, or the deadline.
  [[nodiscard]] Outcome run(const Ask& ask, Deadline deadline) noexcept;
  [[nodiscard]] Outcome put(Ask ask, const PutOptions& options, Deadline deadline) noexcept;
  [[nodiscard]] Status start_pipelined(Ask ask, std::uint64_t cookie) noexcept;
  [[nodiscard]] std::size_t poll(std::span<Completion> completions) noexcept;
  [[nodiscard]] std::size_t wait(std::span<Completion> completions, Deadline deadline) noexcept;
  [[nodiscard]] std::size_t pipelined() const noexcept { return pipelined_; }
  /// As many in flight as the table has room for.
  void get(std::span<GetRequest> requests, Deadline deadline) noexcept;
  void put(std::span<PutRequest> requests, Deadline deadline) noexcept;
  /// Waits until the server has no use of anything that was given up.
  [[nodiscard]] Status settle(Deadline deadline) noexcept;
  /// kOk: the request may be sent.
  [[nodiscard]] Status check(const Ask& ask) const noexcept {
    if (links_.has_failed()) [[unlikely]]
      return links_.connection_error().status();
    if (!has_key(ask.op)) [[unlikely]]
      return check_whole(ask);
    const bool is_right = ask.key.size() - 1 < kMaxKeyBytes && ask.value.size() <= links_.server().max_value_bytes &&
                          (ask.op != wire::Op::kCas || ask.expected != wire::kAnyVersion) &&
                          (!links_.options().read_only || ask.op == wire::Op::kGet);
    return is_right ? Status::kOk : refuse(ask);
  }

  // --- awaited calls: see PollingClient
  /// \thread any
  [[nodiscard]] bool is_awaited_by_another(const void* who) const noexcept {
    const void* const now = awaited_.who.load(std::memory_order_relaxed);
    return now != nullptr && now != who;
  }
  [[nodiscard]] bool carry_out_now(AwaitedCall& call) noexcept;
  [[nodiscard]] bool begin(AwaitedCall& call, const void* who) noexcept;
  [[nodiscard]] bool withdraw(AwaitedCall& call) noexcept;
  void look() noexcept;
  void sleep(Deadline deadline) noexcept;

  // --- for the parts
  [[nodiscard]] static bool is_awaited(const Operation& operation) noexcept { return operation.tell == tell_awaited; }
  /// Its caller is gone: it timed out, or was withdrawn.
  [[nodiscard]] static bool is_abandoned(const Operation& operation) noexcept { return operation.tell == tell_nobody; }
  void finish(Operation& operation, const Outcome& outcome) noexcept {
    operation.outcome = outcome;
    operation.stage = Stage::kDone;
    if (operation.tell == nullptr) return done_.push_back(operation.slot());
    operation.tell(*this, operation);
  }
  /// Finishes it unless its next message was sent.
  void end_unless_sent(Operation& operation, Status status) noexcept;
  void free_slot(Operation& operation) noexcept;
  /// Ends all operations of a connection that has failed. Call it after each poll of the loop.
  void drain() noexcept {
    if (links_.has_failed() && links_.workers() != 0) [[unlikely]]
      end_operations();
  }

 private:
  using Stage = Operation::Stage;

  // channel::Handler
  void on_message(channel::Connection& channel, std::span<const std::byte> body) noexcept override;
  void on_complete(channel::Connection& channel, const channel::Completion& completion) noexcept override;
  void on_end(channel::Connection&, Status reason) noexcept override { links_.on_end(reason); }
  void on_reply(Operation& operation, const wire::Reply& reply) noexcept;

  // Those who are told of an end.
  static void tell_batch(Requests& requests, Operation& operation) noexcept;
  static void tell_awaited(Requests& requests, Operation& operation) noexcept;
  static void tell_nobody(Requests& requests, Operation& operation) noexcept { requests.free_slot(operation); }

  // The table.
  [[nodiscard]] Operation& take_slot(Operation::Tell tell) noexcept;
  /// Null: no operation has this id any more.
  [[nodiscard]] Operation* find(std::uint32_t id) noexcept;
  [[nodiscard]] channel::Connection& channel_of(const Operation& operation) const noexcept {
    return links_.channel(operation.worker);
  }

  // Starting.
  [[nodiscard]] Status check_whole(const Ask& ask) const noexcept;
  /// Checks one that this thread does not wait for.
  [[nodiscard]] Status check_unblocked(const Ask& ask, const char* call) const noexcept;
  /// Says in words what is wrong with the request.
  [[nodiscard]] Status refuse(const Ask& ask) const noexcept;
  /// kAgain: there is no room for it now.
  [[nodiscard]] Status start(const Ask& ask, Operation::Tell tell, Operation*& started) noexcept;
  [[nodiscard]] Status send(const Ask& ask, Operation& operation) noexcept;

  // Blocking calls.
  [[nodiscard]] Outcome attempt(const Ask& ask, Deadline deadline, bool& is_resting) noexcept;
  [[nodiscard]] Outcome give_up(Operation& operation) noexcept;
  [[nodiscard]] static bool uses_memory(const Operation& operation) noexcept;
  void abandon(Operation& operation) noexcept;

  // Large puts.
  void settle(Operation& operation) noexcept;

  // Batches.
  template <class Request>
  void run_batch(std::span<Request> requests, Deadline deadline) noexcept;
  [[nodiscard]] bool start_one(GetRequest& request, Deadline deadline) noexcept;
  [[nodiscard]] bool start_one(PutRequest& request, Deadline deadline) noexcept;
  [[nodiscard]] bool start_in_batch(const Ask& ask, Outcome& result) noexcept;
  void give_up_batch() noexcept;

  // Awaited calls.
  [[nodiscard]] Status start_awaited(AwaitedCall& call) noexcept;
  [[nodiscard]] Status start_on_word(AwaitedCall& call, Operation*& started) noexcept;
  void end_awaited(AwaitedCall& call, const Outcome& outcome) noexcept;
  void forget(AwaitedCall& call) noexcept;
  void go_on_awaited() noexcept;
  void end_waiting(Status reason) noexcept;

  // Polls.
  void work() noexcept;
  [[nodiscard]] Deadline pipeline_deadline() const noexcept;
  void expire() noexcept;
  void end_operations() noexcept;

  Links& links_;
  Gets& gets_;
  Puts& puts_;
  Words& words_;
  Scans& scans_;
  std::vector<Operation> operations_;
  std::vector<std::uint32_t> free_;  ///< A stack of slots.
  std::vector<std::uint32_t> done_;  ///< Slots of completed operations whose callers look themselves, in order.
  std::size_t pipelined_ = 0;        ///< Operations started and not yet polled.
  std::size_t batched_ = 0;          ///< Operations of the current batch.
  unsigned empty_polls_ = 0;         ///< Since a poll that found something, or since the last look at their age.
  struct {
    AwaitedCalls queued;                    ///< For room, first come first served.
    AwaitedCalls resting;                   ///< Puts that are sent again, the next one first.
    std::size_t count = 0;                  ///< Those that were begun and not told.
    std::atomic<const void*> who{nullptr};  ///< Who has begun them.
  } awaited_;
};

}  // namespace verbena::kv
