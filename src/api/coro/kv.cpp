// Coroutines that wait for what clients of a store do.
#include <verbena/coroutines_kv.hpp>

#include "base/failure.hpp"
#include "kv/client.hpp"

#include <new>
#include <type_traits>

namespace verbena::coroutine::detail {

namespace {

constexpr const char* kStoreCall = "coroutine";

/// Polls a client while something of it is awaited.
class DrivenClient final : public kv::Poller, public Driven {
 public:
  explicit DrivenClient(kv::PollingClient& client) noexcept : client_(client) {}
  void look() noexcept override { client_.look(); }
  void sleep(Deadline deadline) noexcept override { client_.sleep(deadline); }
  void wake() noexcept override { client_.wake(); }
  void settle() noexcept override { Driven::settle(); }

 private:
  kv::PollingClient& client_;
};

kv::Ask ask_of(const KvRequest& request) noexcept {
  using What = KvRequest::What;
  kv::Ask ask{.key = request.key, .value = request.value, .out = request.out};
  switch (request.what) {
    case What::kPut: ask.op = kv::wire::Op::kPut; break;
    case What::kErase: ask.op = kv::wire::Op::kErase; break;
    default: ask.op = kv::wire::Op::kGet;
  }
  return ask;
}

channel::Change change_of(const KvRequest& request) noexcept {
  if (request.what == KvRequest::What::kCompareSwap)
    return {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = request.expected, .swap = request.operand};
  return {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .compare_add = request.operand};
}

kv::AwaitedCall::Word word_of(KvRequest::What what) noexcept {
  switch (what) {
    case KvRequest::What::kFetchAdd:
    case KvRequest::What::kCompareSwap: return kv::AwaitedCall::Word::kChange;
    case KvRequest::What::kReadCell: return kv::AwaitedCall::Word::kRead;
    default: return kv::AwaitedCall::Word::kNone;
  }
}

}  // namespace

struct KvWait::Calling : kv::AwaitedCall {
  KvWait* wait = nullptr;
};

KvWait::KvWait(kv::Client& client, const KvRequest& request, const std::optional<Deadline>& deadline) noexcept
    : client_(client.polled()), deadline_(deadline) {
  static_assert(sizeof(Calling) <= sizeof call_ && alignof(Calling) <= 8 && std::is_trivially_destructible_v<Calling>);
  auto& mine = *new (call_.data()) Calling;
  mine.ask = ask_of(request);
  if (request.what == KvRequest::What::kPut) refused_ = kv::take_options(request.options, mine.ask);
  mine.cell = request.cell;
  mine.change = change_of(request);
  mine.word = word_of(request.what);
  mine.wait = this;
  mine.tell = [](engine::Call& told) noexcept { static_cast<Calling&>(told).wait->Wait::tell(); };
}

KvWait::Calling& KvWait::call() noexcept { return *std::launder(reinterpret_cast<Calling*>(call_.data())); }

bool KvWait::await_ready() noexcept {
  Loop& loop = *context().loop;
  if (refused_ == Status::kOk) refused_ = loop.refuses(context().scope);
  if (refused_ != Status::kOk) [[unlikely]]
    return true;
  if (client_ == nullptr) [[unlikely]]
    return refused_ = note(Status::kUnsupported, kStoreCall, "operations of this client cannot be awaited"), true;
  if (client_->is_awaited_by_another(&loop)) [[unlikely]]
    return refused_ =
               note(Status::kBusy, kStoreCall, "another loop awaits operations of this client: give each loop its own"),
           true;
  is_done_ = client_->carry_out_now(call());
  return is_done_ && loop.goes_on();
}

// It waits before the operation begins: the start of one may end the connection, and with it all of them.
bool KvWait::await_suspend(std::coroutine_handle<> awaiting) noexcept {
  if (is_done_) return yield(context(), awaiting), true;
  park(context(), awaiting, deadline_ ? *deadline_ : client_->default_deadline(), &client_->poller<DrivenClient>());
  if (client_->begin(call(), context().loop)) return true;
  unpark();
  return false;
}

bool KvWait::withdraw() noexcept { return client_->withdraw(call()); }

kv::Outcome KvWait::outcome() noexcept {
  if (refused_ != Status::kOk) return {.status = refused_};
  const kv::Outcome& told = call().outcome;
  if (ended() == Status::kOk) return told;
  const bool is_full = ended() == Status::kTimedOut && told.status == Status::kStoreFull;
  const Status status = is_full ? Status::kStoreFull : ended();
  return {.status = note(status, kStoreCall, "{}", sentence_of(status))};
}

std::uint64_t KvWait::old() noexcept { return call().old; }

}  // namespace verbena::coroutine::detail
