// Queue pairs of the typed API: from the builder to ready, and their end.
#include <verbena/queue_pair.hpp>

#include "api/cxx/guarded.hpp"
#include "api/cxx/queue_pair_state.hpp"
#include "base/limit.hpp"
#include "session/session.hpp"

#include <algorithm>

namespace verbena::typed::detail {
namespace {

constexpr const char* kPrepare = "typed::QueuePairBuilder::prepare";
constexpr const char* kConnect = "typed::Connecting::finish";
/// For the way to INIT, which asks nobody.
constexpr std::chrono::seconds kPreparing{5};
constexpr std::uint32_t kMaxPsn = 0xFF'FFFF;

[[nodiscard]] std::uint8_t type_of(const QueuePairSettings& settings) noexcept { return settings.is_reliable ? 1 : 2; }

[[nodiscard]] Result<void> check_queues(const QueuePairSettings& settings, const nic::Limits& limits) {
  const std::uint32_t most = std::min(QueuePairState::kMaxDepth, limits.max_qp_wr - engine::QueuePair::kReserve);
  VERBENA_TRY(check_limit(kPrepare, "send_depth", settings.send_depth, 1, most));
  VERBENA_TRY(check_limit(kPrepare, "receive_depth", settings.receive_depth, 1, most));
  VERBENA_TRY(check_limit(kPrepare, "max_sge", settings.max_sge, 1, limits.max_sge));
  return check_limit(kPrepare, "max_inline", settings.max_inline, 0, limits.max_inline);
}

[[nodiscard]] Result<void> check_path(const QueuePairSettings& settings) {
  if (settings.mtu) VERBENA_TRY(check_limit(kPrepare, "mtu", static_cast<std::uint64_t>(*settings.mtu), 1, 5));
  VERBENA_TRY(check_limit(kPrepare, "psn", settings.psn.value_or(0), 0, kMaxPsn));
  VERBENA_TRY(check_limit(kPrepare, "traffic_class", settings.traffic_class, 0, 255));
  VERBENA_TRY(check_limit(kPrepare, "max_reads", settings.max_reads, 0, 255));
  VERBENA_TRY(check_limit(kPrepare, "ack_timeout", settings.ack_timeout, 0, 31));
  VERBENA_TRY(check_limit(kPrepare, "retry_count", settings.retry_count, 0, 7));
  VERBENA_TRY(check_limit(kPrepare, "rnr_retry", settings.rnr_retry, 0, 7));
  VERBENA_TRY(check_limit(kPrepare, "min_rnr_timer", settings.min_rnr_timer, 0, 31));
  VERBENA_TRY(check_limit(kPrepare, "access", static_cast<std::uint64_t>(settings.access), 0, 7));
  constexpr std::uint64_t kMostMs = std::chrono::milliseconds(std::chrono::days{12}).count();
  return check_limit(kPrepare, "wait_timeout in ms", static_cast<std::uint64_t>(settings.wait_timeout.count()), 1,
                     kMostMs);
}

/// What is wrong with the numbers themselves, whoever sent them; null: nothing.
[[nodiscard]] const char* fault_of(const QueuePairEndpoint& endpoint) noexcept {
  if (endpoint.magic != QueuePairEndpoint::kMagic) return "another magic number";
  if (endpoint.reserved != 0) return "a reserved byte that is not 0";
  if (endpoint.type != 1 && endpoint.type != 2) return "an unknown type";
  if (endpoint.number == 0) return "no number";
  return nullptr;
}

[[nodiscard]] link::Endpoint decoded(const QueuePairEndpoint& endpoint) noexcept {
  link::Endpoint peer{.nic = static_cast<nic::Kind>(endpoint.nic),
                      .qp = {.qp_num = endpoint.number,
                             .psn = endpoint.psn,
                             .lid = endpoint.lid,
                             .mtu = endpoint.mtu,
                             .max_rd_atomic = endpoint.max_reads,
                             .network = static_cast<nic::Network>(endpoint.network)}};
  std::ranges::copy(endpoint.gid, peer.qp.gid.raw);
  return peer;
}

}  // namespace

// --- bring-up -----------------------------------------------------------------------------------------------------

QueuePairState::QueuePairState(const QueuePairSettings& settings)
    : StartedOperations(settings.send_depth + settings.receive_depth, settings.max_sge),
      settings_(settings),
      sges_(settings.max_sge),
      sent_(numbers()),
      words_(settings.is_reliable ? numbers() : 0) {}

Result<QueuePairState*> QueuePairState::make(const QueuePairSettings& settings) {
  VERBENA_TRY(check_queues(settings, settings.node->device().nic().limits()));
  VERBENA_TRY(check_path(settings));
  auto* const made = new QueuePairState(settings);
  auto opened = made->open();
  if (opened) return made;
  made->close();
  return std::unexpected(opened.error());
}

Result<void> QueuePairState::open() {
  const std::uint32_t cqe = engine::QueuePair::completions_needed(settings_.send_depth, settings_.receive_depth);
  VERBENA_ASSIGN(loop_,
                 engine::CompletionLoop::create(nic(), {.max_connections = 1, .cqe = cqe, .wait = settings_.wait}));
  pair_.emplace(*loop_, static_cast<engine::QueuePair::Owner&>(*this));
  ibv_pd* const pd = settings_.node->device().pd();
  VERBENA_TRY(pair_->open(pd, {.sends = settings_.send_depth,
                               .receives = settings_.receive_depth,
                               .send_sge = settings_.max_sge,
                               .receive_sge = settings_.max_sge,
                               .max_inline = settings_.max_inline,
                               .held = 0,
                               .type = settings_.is_reliable ? IBV_QPT_RC : IBV_QPT_UC}));
  max_inline_ = std::min(pair_->max_inline(), settings_.max_inline);
  max_message_ = nic().limits().max_message;
  if (!words_.empty() && nic().capabilities().has_atomics) {
    const std::size_t bytes = words_.size() * sizeof(std::uint64_t);
    VERBENA_ASSIGN(ibv_mr * mr, nic().reg_mr(pd, words_.data(), bytes, reinterpret_cast<std::uintptr_t>(words_.data()),
                                             IBV_ACCESS_LOCAL_WRITE));
    words_mr_ = nic::Mr(nic(), mr);
  }
  local_ = link::describe(nic(), pair_->get(), settings_.receive_depth);
  nic::QpAddress& qp = local_.qp;
  if (settings_.mtu) qp.mtu = std::min(qp.mtu, static_cast<std::uint8_t>(*settings_.mtu));
  if (settings_.psn) qp.psn = *settings_.psn;
  qp.max_rd_atomic = settings_.is_reliable
                         ? static_cast<std::uint8_t>(std::min<std::uint32_t>(qp.max_rd_atomic, settings_.max_reads))
                         : 0;
  return link::prepare(nic(), pair_->get(), how(), Deadline::after(kPreparing));
}

link::BringUp QueuePairState::how() const noexcept {
  // Settings that only the other type has are not checked.
  const std::uint32_t rights = session::verbs_access_of(settings_.access);
  return {.access = static_cast<int>(settings_.is_reliable ? rights : rights & IBV_ACCESS_REMOTE_WRITE),
          .min_rnr_timer = static_cast<std::uint8_t>(settings_.min_rnr_timer),
          .rnr_retry = static_cast<std::uint8_t>(settings_.rnr_retry),
          .retry_count = static_cast<std::uint8_t>(settings_.retry_count),
          .timeout = static_cast<std::uint8_t>(settings_.ack_timeout),
          .traffic_class = static_cast<std::uint8_t>(settings_.traffic_class)};
}

QueuePairEndpoint QueuePairState::describe() const noexcept {
  const nic::QpAddress& qp = local_.qp;
  QueuePairEndpoint endpoint{.type = type_of(settings_),
                             .nic = static_cast<std::uint8_t>(local_.nic),
                             .network = static_cast<std::uint8_t>(qp.network),
                             .mtu = qp.mtu,
                             .number = qp.qp_num,
                             .psn = qp.psn,
                             .lid = qp.lid,
                             .max_reads = qp.max_rd_atomic};
  std::ranges::copy(qp.gid.raw, endpoint.gid.begin());
  return endpoint;
}

Result<void> QueuePairState::meet(const QueuePairEndpoint& peer) {
  constexpr const char* kBegin = "typed::Prepared::begin";
  if (const char* fault = fault_of(peer))
    return fail(Status::kProtocol, kBegin, 0,
                "the peer's endpoint has {}: it is of another release or byte order, or was changed on its way", fault);
  if (peer.type != type_of(settings_))
    return fail(Status::kRejected, kBegin, 0, "this queue pair is {} and the peer's {}: choose the same type",
                settings_.is_reliable ? "Rc" : "Uc", settings_.is_reliable ? "Uc" : "Rc");
  const link::Endpoint remote = decoded(peer);
  VERBENA_TRY(link::check_fit(nic(), local_, remote, link::BringUp{}));
  remote_ = remote;
  peer_number_ = nic::number_of(remote.qp.gid);
  return {};
}

Result<void> QueuePairState::connect(Deadline deadline) {
  if (is_up_) return {};
  VERBENA_TRY(link::bring_up(nic(), pair_->get(), local_, remote_, how(), deadline));
  pair_->attach();
  is_up_ = true;
  return {};
}

Result<void> QueuePairState::import(const rdma::Window& window, const std::optional<Deadline>& deadline) {
  constexpr const char* kCall = "typed::Ready::open";
  const nic::Window theirs{.address = window.address,
                           .length = window.length,
                           .rkey = window.rkey,
                           .access = session::verbs_access_of(window.access),
                           .memory_id = window.memory_id};
  if (pair_->reason() != Status::kOk) return fail(pair_->reason(), kCall, 0, "the queue pair has failed");
  if (!nic::may_be_of(window.peer, peer_number_))
    return fail(Status::kBadArgument, kCall, 0, "window is {}", session::kAnothersMemory);
  const Deadline until = deadline ? *deadline : default_deadline();
  VERBENA_TRY(nic().import_window(pair_->get(), theirs, until));
  const Status added = windows_.add(theirs);
  if (added == Status::kOk) return {};
  VERBENA_TRY(nic().release_window(pair_->get(), theirs));
  return fail(added, kCall, 0, "{} windows are open, or this one wraps around", engine::WindowTable::kCapacity);
}

void QueuePairState::close() noexcept {
  {
    const Turn turn(*this);
    // Another thread would go on with a queue pair that is gone.
    VERBENA_CHECK(static_cast<bool>(turn));
    if (pair_) pair_->shut();
    pair_.reset();
    loop_.reset();
    words_mr_.reset();
    complete_all(Status::kClosed);
    Driven::settle();  // Coroutines that waited have been told, and this is polled no more.
  }
  end();
}

// --- handles ------------------------------------------------------------------------------------------------------

Result<QueuePairHandle> QueuePairHandle::make(const QueuePairSettings& settings) {
  return api::guarded(kPrepare, [&]() -> Result<QueuePairHandle> {
    QueuePairHandle handle;
    VERBENA_ASSIGN(handle.state_, QueuePairState::make(settings));
    return handle;
  });
}

QueuePairEndpoint QueuePairHandle::describe() const noexcept {
  return state_ != nullptr ? state_->describe() : QueuePairEndpoint{};
}

Result<void> QueuePairHandle::meet(const QueuePairEndpoint& peer) {
  constexpr const char* kCall = "typed::Prepared::begin";
  return api::guarded(kCall, [&]() -> Result<void> {
    if (state_ == nullptr) return fail(Status::kClosed, kCall, 0, "the queue pair was moved away");
    return state_->meet(peer);
  });
}

Result<void> QueuePairHandle::connect(Deadline deadline) {
  return api::guarded(kConnect, [&]() -> Result<void> {
    if (state_ == nullptr) return fail(Status::kClosed, kConnect, 0, "the queue pair was moved away");
    return state_->connect(deadline);
  });
}

Result<void> QueuePairHandle::import(const rdma::Window& window, const std::optional<Deadline>& deadline) {
  constexpr const char* kCall = "typed::Ready::open";
  return api::guarded(kCall, [&]() -> Result<void> {
    if (state_ == nullptr) return fail(Status::kClosed, kCall, 0, "the queue pair is closed");
    return state_->import(window, deadline);
  });
}

Result<void> QueuePairHandle::check_batch(std::size_t capacity) const {
  constexpr const char* kCall = "typed::Ready::batch";
  if (state_ == nullptr) return fail(Status::kClosed, kCall, 0, "the queue pair is closed");
  return check_limit(kCall, "capacity", capacity, 1, state_->settings().send_depth);
}

void QueuePairHandle::close() noexcept {
  QueuePairState* const state = std::exchange(state_, nullptr);
  // In a forked child it belongs to the parent.
  if (state == nullptr || is_forked()) return;
  const CancellationHeld held;
  state->close();
}

Started QueuePairHandle::start(const Request& request) noexcept {
  return state_ != nullptr ? state_->start(request)
                           : Started(note(Status::kClosed, request.call, "the queue pair is closed"));
}
Started QueuePairHandle::start_receive(const char* call, std::span<const Piece> pieces) noexcept {
  return state_ != nullptr ? state_->start_receive(call, pieces)
                           : Started(note(Status::kClosed, call, "the queue pair is closed"));
}
Status QueuePairHandle::post_unsignaled(const Request& request) noexcept {
  return state_ != nullptr ? state_->post_unsignaled(request)
                           : note(Status::kClosed, request.call, "the queue pair is closed");
}

Status QueuePairHandle::failure() const noexcept { return state_ != nullptr ? state_->failure() : Status::kClosed; }
std::size_t QueuePairHandle::max_sge() const noexcept { return state_ != nullptr ? state_->settings().max_sge : 0; }
std::size_t QueuePairHandle::max_inline() const noexcept { return state_ != nullptr ? state_->max_inline() : 0; }
std::size_t QueuePairHandle::room() const noexcept { return state_ != nullptr ? state_->room() : 0; }
std::size_t QueuePairHandle::quarantined() const noexcept { return state_ != nullptr ? state_->quarantined() : 0; }
Status QueuePairHandle::settle(Deadline deadline) noexcept {
  return state_ != nullptr ? state_->settle(deadline, "typed::Ready::settle") : Status::kOk;
}

}  // namespace verbena::typed::detail
