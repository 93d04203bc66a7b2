#include "message/message.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/limit.hpp"
#include "engine/connection.hpp"
#include "message/wire.hpp"
#include "nic/registered_arena.hpp"
#include "nic/verbs.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <vector>

// Credits, and why they cannot deadlock.
//
// Each side has posted R = depth + margin receives and tells the peer the cumulative count, in every message. A sender
// may have at most as many messages beyond that count's start. A message or fragment needs two credits, a bare credit
// update one, and an update is due when depth/2 receives, or half of the lease, were given back and not told. Suppose
// that nothing is in flight, and A has a message to send and may not.
//  - Receives: A has at most one credit, so B has consumed at least R - 1 messages since its last claim reached A, more
//    than depth/2: an update of B is due, and goes out unless B has no credit at all.
//  - Both at zero: a side gets to zero only by an update (a message leaves one credit), and each update raises its
//    claim by at least one. Of the two last updates, one, say B's, was sent before A's was processed, so by an older
//    claim of A's. A's update raised that claim, so B has a credit after all; A's R messages are consumed, so an update
//    of B is due.
//  - Lease: a fragment is at most a quarter of the lease, so with the units left out before the end it needs less than
//    half. Less than half is untold when no update is due, so more than half is free.
// Updates do not answer updates for ever: depth/2 >= 2 messages make one.

namespace verbena::message {

namespace {

using engine::wr::kNoSlot;
using engine::wr::kNoTag;

constexpr std::size_t kMaxHeadBytes = 2048;
constexpr std::uint64_t kMinFragmentBytes = 1024;
constexpr std::uint32_t kCreditBytes = sizeof(wire::Credits);
/// Of a bind and an invalidation. Soft-RoCE (Linux 6.1, rxe_req.c) carries them out again when something before them is
/// sent again; with a fence they wait there until all before them is complete. Other NICs have them wait for READs and
/// atomics only, of which a server has none.
constexpr unsigned kAlone = IBV_SEND_FENCE;

[[nodiscard]] constexpr std::size_t align_up(std::size_t value, std::size_t to) noexcept {
  return (value + to - 1) / to * to;
}

[[nodiscard]] constexpr std::uint32_t sends_for(const Options& options) noexcept {
  // Twice the depth, so that a quarter that waits to be signaled does not hold up messages for which there is credit.
  return 2 * wire::receives_for(options.depth) + options.max_reads;
}

[[nodiscard]] Result<void> check(const Options& options, const nic::Nic& nic) {
  constexpr const char* kCall = "message::Channel::create";
  VERBENA_TRY(check_limit(kCall, "depth", options.depth, wire::kMinDepth, wire::kMaxDepth));
  VERBENA_TRY(check_limit(kCall, "eager_bytes", options.eager_bytes, wire::kMinEagerBytes, wire::kMaxEagerBytes));
  if (options.eager_bytes % wire::kUnit != 0)
    return fail(Status::kBadArgument, kCall, 0, "eager_bytes must be a multiple of {}; got {}", wire::kUnit,
                options.eager_bytes);
  if (options.lease_bytes != 0)
    VERBENA_TRY(check_limit(kCall, "lease_bytes, unless it is 0,", options.lease_bytes, wire::kMinLeaseBytes,
                            wire::kMaxLeaseBytes));
  VERBENA_TRY(check_limit(kCall, "fragment_bytes", options.fragment_bytes, kMinFragmentBytes, wire::kMaxLeaseBytes));
  VERBENA_TRY(check_limit(kCall, "max_reads", options.max_reads, 1, 4096));
  VERBENA_TRY(check_limit(kCall, "max_operations", options.max_operations, 1, 4096));
  const std::uint32_t sends = sends_for(options) + engine::Connection::kReserve;
  if (sends > nic.limits().max_qp_wr)
    return fail(Status::kLimit, kCall, 0,
                "depth {} and max_reads {} take {} work requests of one send queue, and {} has {}: lower one of them",
                options.depth, options.max_reads, sends, nic.name(), nic.limits().max_qp_wr);
  return {};
}

/// Of a channel's own arena: all of its receive buffers, heads of large messages, and what it sends from.
struct Layout {
  std::size_t buffer_stride = 0;
  std::size_t staging_stride = 0;
  std::size_t bytes = 0;
};

/// `max_inline` is what the queue pair has.
[[nodiscard]] constexpr Layout layout_of(const Options& options, std::uint32_t max_inline) noexcept {
  Layout layout;
  layout.buffer_stride = align_up(kCreditBytes + options.eager_bytes, wire::kUnit);
  // Fragment headers are always staged; messages only where the NIC cannot take all of them inline.
  const bool all_inline = max_inline >= kCreditBytes + options.eager_bytes;
  layout.staging_stride = all_inline ? wire::kUnit : layout.buffer_stride;
  layout.bytes = wire::receives_for(options.depth) * layout.buffer_stride  // receives
                 + options.max_operations * kMaxHeadBytes                  // heads of large messages
                 + (sends_for(options) + engine::Connection::kReserve) * layout.staging_stride;  // one a send slot
  return layout;
}

/// A READ, WRITE or send with a token from start to completion.
struct Work {
  enum class Kind : std::uint8_t { kRead, kAtomic, kWrite, kLarge, kEager, kInvalidate };
  std::uint64_t token = 0;
  LocalSpan local;
  RemoteSpan remote;         ///< Of a READ, WRITE or atomic.
  Change change;             ///< Of an atomic.
  std::uint64_t total = 0;   ///< Bytes, head and body.
  std::uint64_t posted = 0;  ///< Of these, in work requests posted.
  std::uint32_t head_bytes = 0;
  std::uint32_t outstanding = 0;  ///< Signaled work requests posted and not complete.
  std::uint32_t next = kNoSlot;   ///< In its queue of what is not posted to the end.
  Kind kind = Kind::kRead;
};
static_assert(sizeof(Work) == 112);

/// Slots in the order they were started, linked through Work::next.
struct Queue {
  std::uint32_t first = kNoSlot;
  std::uint32_t last = kNoSlot;
  void push(std::vector<Work>& work, std::uint32_t slot) noexcept {
    work[slot].next = kNoSlot;
    (first == kNoSlot ? first : work[last].next) = slot;
    last = slot;
  }
  void pop(const std::vector<Work>& work) noexcept { first = work[first].next; }
};

/// Of channels whose handler is gone.
class Nobody final : public Handler {
 public:
  void on_message(Channel&, std::span<const std::byte>) noexcept override {}
  void on_fragment(Channel&, const Fragment&) noexcept override {}
  void on_complete(Channel&, std::uint64_t, Status) noexcept override {}
  void on_failure(Channel&, Status) noexcept override {}
};
Nobody nobody;

class QpChannel final : public Channel, private engine::Connection {
 public:
  QpChannel(engine::CompletionLoop& loop, const Options& options, Handler& handler)
      : Connection(loop),
        options_(options),
        handler_(&handler),
        in_flight_(options.max_operations),
        max_message_(loop.nic().limits().max_message) {}
  ~QpChannel() override { shut(); }

  [[nodiscard]] Result<void> create(ibv_pd* pd);

  Result<link::Endpoint> local_endpoint(std::span<const std::byte> user_data) override;
  Result<void> connect(const link::Endpoint& local, const link::Endpoint& remote, Deadline deadline,
                       const link::BringUp& how) override;
  void keep(link::Lifeline lifeline) noexcept override { Connection::keep(std::move(lifeline)); }
  Result<void> open_lease(Deadline deadline) override;
  void attach() noexcept override { Connection::attach(); }

  Status send(std::span<const std::byte> a, std::span<const std::byte> b,
              std::span<const std::byte> c) noexcept override;
  Status start_send(std::span<const std::byte> a, std::span<const std::byte> b, std::uint64_t token) noexcept override;
  Status start_large(std::span<const std::byte> head, LocalSpan body, std::uint64_t token) noexcept override;
  Status start_read(LocalSpan local, RemoteSpan remote, std::uint64_t token) noexcept override;
  Status start_write(LocalSpan local, RemoteSpan remote, std::uint64_t token) noexcept override;
  Status start_atomic(const Change& change, LocalSpan result, RemoteSpan word, std::uint64_t token) noexcept override;
  Status read(LocalSpan local, RemoteSpan remote, std::chrono::nanoseconds timeout) noexcept override;
  Status write(LocalSpan local, RemoteSpan remote, std::chrono::nanoseconds timeout) noexcept override;
  Status read_now(std::span<std::byte> to, RemoteSpan from) noexcept override;
  Status write_now(std::span<const std::byte> from, RemoteSpan to) noexcept override;
  Status change_now(const Change& change, RemoteSpan word, std::uint64_t& old) noexcept override;
  Status read_list_now(std::span<const nic::PlainRead> reads, std::uint32_t rkey) noexcept override;
  Result<void> import_window(const nic::Window& window, Deadline deadline) override;
  bool is_usable(const nic::Window& window) noexcept override {
    return windows_.check({window.address, window.length, window.rkey}, window.access) == Status::kOk;
  }
  Result<void> release_window(const nic::Window& window) override;
  void lend_window(const nic::Window& window) noexcept override { windows_.lend(window); }
  Status bind(ibv_mw& window, std::uint32_t rkey, const ibv_mw_bind_info& info) noexcept override;
  Status start_invalidate(std::uint32_t rkey, std::uint64_t token) noexcept override;
  ibv_qp* queue_pair() const noexcept override { return qp(); }

  void hold() noexcept override { Connection::hold(); }
  void release() noexcept override { Connection::release(); }
  void flush() noexcept override { Connection::flush(); }
  void mute() noexcept override;
  void fail(Status reason) noexcept override { begin_failure(reason); }
  bool alive() const noexcept override { return connected_ && reason() == Status::kOk; }
  bool drained() const noexcept override { return is_drained(); }
  Status failure() const noexcept override { return reason(); }
  std::uint32_t peer_eager_bytes() const noexcept override { return longest_send_; }
  std::uint32_t credits() const noexcept override {
    const std::uint32_t receives = receive_credits();
    return receives < 2 ? 0 : std::min(receives - 1, send_room());
  }
  Result<nic::PeerProcess> peer() const override { return nic().peer_of(qp()); }

 private:
  // engine::Connection
  void handle(std::span<const ibv_wc> completions) noexcept override;
  void on_attached() noexcept override;
  void on_drained() noexcept override;

  [[nodiscard]] Result<void> create_buffers(ibv_pd* pd);
  void build_requests() noexcept;
  void set_peer(const wire::Handshake& peer, const link::Endpoint& local, const link::Endpoint& remote) noexcept;

  // Receiving.
  void on_receive(const ibv_wc& completion) noexcept;
  [[nodiscard]] Status on_eager(const ibv_wc& completion) noexcept;
  [[nodiscard]] Status on_fragment(const ibv_wc& completion) noexcept;
  [[nodiscard]] bool accept(wire::Credits claim) noexcept;
  void refill() noexcept;
  [[nodiscard]] std::uint32_t untold_receives() const noexcept { return consumed_ + buffer_count_ - told_posted_; }
  [[nodiscard]] bool is_update_due() const noexcept {
    return untold_receives() >= options_.depth / 2 ||
           (lease_units_ != 0 && lease_consumed_ - told_lease_ >= lease_units_ / 2);
  }
  void send_update() noexcept;

  // Sending.
  [[nodiscard]] std::uint32_t receive_credits() const noexcept { return peer_posted_ - sent_; }
  [[nodiscard]] wire::Credits tell() noexcept {
    told_posted_ = posted_receives_;
    told_lease_ = lease_consumed_;
    return {wire::little(posted_receives_), wire::little(lease_consumed_)};
  }
  [[nodiscard]] std::byte* staging() const noexcept { return staging_ + next_send_slot() * staging_stride_; }
  /// Whether `total` bytes can be sent now.
  [[nodiscard]] Status check_eager(std::size_t total) const noexcept;
  [[nodiscard]] Status post_eager(std::uint32_t tag, Signal signal, std::span<const std::byte> a,
                                  std::span<const std::byte> b, std::span<const std::byte> c) noexcept;
  [[nodiscard]] int gather_inline(std::span<const std::byte> a, std::span<const std::byte> b,
                                  std::span<const std::byte> c) noexcept;
  [[nodiscard]] int gather_staged(std::span<const std::byte> a, std::span<const std::byte> b,
                                  std::span<const std::byte> c) noexcept;
  void on_sent(const ibv_wc& completion) noexcept;
  void complete(std::uint32_t slot, Status status) noexcept;
  void make_progress() noexcept;
  void post_large() noexcept;
  void post_reads() noexcept;
  void post_writes() noexcept;
  /// Posts the next piece of the READ or WRITE in `slot`, as much as the NIC takes at once.
  [[nodiscard]] bool post_piece(ibv_send_wr& request, std::uint32_t slot) noexcept;
  [[nodiscard]] bool post_atomic(std::uint32_t slot) noexcept;
  /// The NIC's way past its queues, for what nothing is ahead of that is not posted; or null.
  [[nodiscard]] const nic::Direct* direct() const noexcept {
    const bool is_next = reads_.first == kNoSlot && writes_.first == kNoSlot && !loop().in_handler();
    return is_next ? Connection::direct() : nullptr;
  }
  /// Carries a READ or WRITE of `bytes` out that way. kAgain: it is not there.
  [[nodiscard]] Status move_now(nic::Direct::Move nic::Direct::* move, std::byte* local, std::uint32_t lkey,
                                RemoteSpan remote) noexcept {
    const nic::Direct* const now = direct();
    if (now == nullptr) return Status::kAgain;
    const auto bytes = static_cast<std::uint32_t>(remote.length);
    if (!(now->*move)(qp(), local, lkey, bytes, remote.address, remote.rkey)) [[unlikely]]
      return Status::kAgain;
    went_directly(bytes);
    return Status::kOk;
  }
  /// What stands against a READ, WRITE or atomic of `remote`, which is one work request.
  [[nodiscard]] Status check_piece(const RemoteSpan& remote, std::uint32_t access) noexcept {
    if (reason() != Status::kOk) [[unlikely]]
      return reason();
    if (remote.length == 0) [[unlikely]]
      return Status::kBadArgument;
    if (const Status inside = windows_.check(remote, access); inside != Status::kOk) [[unlikely]]
      return inside;
    return remote.length > max_message_ ? Status::kAgain : Status::kOk;
  }
  [[nodiscard]] Status check_word(const RemoteSpan& word) noexcept;
  /// A READ or WRITE that is one work request, and its completion.
  [[gnu::always_inline]] Status transfer(ibv_send_wr& request, const Queue& waiting, LocalSpan local, RemoteSpan remote,
                                         std::chrono::nanoseconds timeout) noexcept;
  [[nodiscard]] Status wait_for_position(std::uint32_t position, std::chrono::nanoseconds timeout) noexcept;
  [[nodiscard]] bool post_fragment(std::uint32_t slot) noexcept;
  [[nodiscard]] int gather_fragment(const Work& work, std::uint32_t slot, std::uint32_t bytes) noexcept;
  [[nodiscard]] std::byte* head_of(std::uint32_t slot) const noexcept { return heads_ + slot * kMaxHeadBytes; }

  // What a message one way touches comes first.
  std::uint32_t peer_posted_ = 0;  ///< Receives the peer claims to have posted, cumulative; wraps, as all counts.
  std::uint32_t sent_ = 0;         ///< Messages and fragments sent.
  std::uint32_t longest_send_ = 0;
  std::uint32_t posted_receives_ = 0;
  std::uint32_t consumed_ = 0;  ///< Receives consumed.
  std::uint32_t told_posted_ = 0;
  std::uint32_t lease_consumed_ = 0;  ///< Units of our lease that are the peer's again.
  std::uint32_t told_lease_ = 0;
  wire::Credits header_;  ///< Of the inline message being posted.
  ibv_send_wr eager_{};
  std::array<ibv_sge, 4> eager_sge_{};
  std::byte* buffers_ = nullptr;
  std::size_t buffer_stride_ = 0;
  std::uint32_t buffer_count_ = 0;  ///< Receives posted when all buffers are.
  std::uint32_t peer_receives_ = 0;
  Queue larges_;
  Queue reads_;
  Queue writes_;
  bool connected_ = false;
  bool lease_open_ = false;

  const Options options_;
  Handler* handler_;  ///< Never null.
  engine::InFlight in_flight_;
  std::vector<Work> work_;
  engine::WindowTable windows_;

  // Large messages out: the peer's lease.
  nic::Window peer_lease_;
  std::uint32_t peer_lease_units_ = 0;
  std::uint32_t lease_used_ = 0;
  std::uint32_t peer_lease_consumed_ = 0;  ///< As the peer claims.
  std::uint32_t out_cursor_ = 0;
  std::uint32_t out_number_ = 0;
  std::uint32_t fragment_payload_ = 0;
  ibv_send_wr fragment_{};
  std::array<ibv_sge, 3> fragment_sge_{};

  // Large messages in: our lease.
  std::uint32_t lease_units_ = 0;
  std::uint32_t in_cursor_ = 0;
  std::uint32_t in_number_ = 0;
  std::uint64_t in_total_ = 0;  ///< Of the message being received; 0 between messages.
  std::uint64_t in_offset_ = 0;

  std::uint32_t max_reads_ = 0;
  std::uint32_t reads_out_ = 0;
  ibv_send_wr read_{};
  ibv_send_wr write_{};
  ibv_send_wr atomic_{};
  ibv_sge piece_sge_{};
  bool has_atomics_ = true;
  const std::uint32_t max_message_;

  std::vector<ibv_recv_wr> receive_requests_;  ///< A ring, linked in order, so that any range of it is a list.
  std::vector<ibv_sge> receive_sge_;
  std::uint32_t next_receive_ = 0;  ///< First buffer to post.

  std::byte* heads_ = nullptr;
  std::byte* staging_ = nullptr;
  std::size_t staging_stride_ = 0;
  std::optional<link::Endpoint> endpoint_;
  nic::RegisteredArena memory_;  ///< Receives, heads, staging.
  nic::RegisteredArena lease_;
};

// --- setup --------------------------------------------------------------------------------------------------------

Result<void> QpChannel::create(ibv_pd* pd) {
  buffer_count_ = wire::receives_for(options_.depth);
  VERBENA_TRY(open(pd, queues_needed(options_)));
  VERBENA_TRY(create_buffers(pd));
  if (options_.lease_bytes != 0) {
    const std::size_t bytes = align_up(options_.lease_bytes, wire::kUnit);
    // Bulk data, which is looked at after its completion only: the order in which it lands is the NIC's.
    VERBENA_TRY(lease_.open(
        nic(), pd, {.size_bytes = bytes, .node = options_.node, .share = host::Share::kReadWrite, .name = "lease"}, {},
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING));
    lease_units_ = wire::units_of(bytes);
  }
  work_.resize(options_.max_operations);
  const nic::DeviceFacts* facts = nic::facts_of(nic());
  has_atomics_ = facts == nullptr || facts->atomics != IBV_ATOMIC_NONE;
  posted_receives_ = told_posted_ = options_.first_count + buffer_count_;
  consumed_ = lease_consumed_ = told_lease_ = options_.first_count;
  out_number_ = options_.first_count & wire::kNumberMask;
  build_requests();
  return {};
}

Result<void> QpChannel::create_buffers(ibv_pd* pd) {
  const Layout layout = layout_of(options_, max_inline());
  buffer_stride_ = layout.buffer_stride;
  staging_stride_ = layout.staging_stride;
  VERBENA_TRY(memory_.open(nic(), pd, {.size_bytes = layout.bytes, .node = options_.node, .name = "channel"}, {},
                           IBV_ACCESS_LOCAL_WRITE));
  buffers_ = memory_.data();
  heads_ = buffers_ + buffer_count_ * buffer_stride_;
  staging_ = heads_ + options_.max_operations * kMaxHeadBytes;
  return {};
}

void QpChannel::build_requests() noexcept {
  receive_requests_.resize(buffer_count_);
  receive_sge_.resize(buffer_count_);
  for (std::uint32_t i = 0; i < buffer_count_; ++i) {
    receive_sge_[i] = {.addr = reinterpret_cast<std::uintptr_t>(buffers_ + i * buffer_stride_),
                       .length = kCreditBytes + options_.eager_bytes,
                       .lkey = memory_.lkey()};
    receive_requests_[i] = {.wr_id = engine::wr::kReceiveBit | i,
                            .next = &receive_requests_[i + 1 < buffer_count_ ? i + 1 : 0],
                            .sg_list = &receive_sge_[i],
                            .num_sge = 1};
  }
  eager_.opcode = IBV_WR_SEND;
  eager_.sg_list = eager_sge_.data();
  fragment_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  fragment_.sg_list = fragment_sge_.data();
  read_.opcode = IBV_WR_RDMA_READ;
  write_.opcode = IBV_WR_RDMA_WRITE;
  read_.sg_list = write_.sg_list = atomic_.sg_list = &piece_sge_;
  read_.num_sge = write_.num_sge = atomic_.num_sge = 1;
}

Result<link::Endpoint> QpChannel::local_endpoint(std::span<const std::byte> user_data) {
  if (user_data.size() > kMaxUserBytes)
    return verbena::fail(Status::kTooLong, "message::Channel::local_endpoint", 0, "{} bytes of user data; {} fit",
                         user_data.size(), kMaxUserBytes);
  // Its packet number and generation are random: described once.
  if (!endpoint_) endpoint_ = link::describe(nic(), qp(), buffer_count_);
  const auto front = wire::encode({.depth = options_.depth,
                                   .eager_bytes = options_.eager_bytes,
                                   .first_count = options_.first_count,
                                   .lease = lease_ ? lease_.window() : nic::Window{}});
  static_assert(wire::kMaxHandshakeBytes + kMaxUserBytes <= link::kMaxPrivateBytes);
  std::array<std::byte, link::kMaxPrivateBytes> data;
  std::memcpy(data.data(), front.data.data(), front.size);
  if (!user_data.empty()) std::memcpy(data.data() + front.size, user_data.data(), user_data.size());
  const Status set = endpoint_->set_user_data({data.data(), front.size + user_data.size()});
  VERBENA_CHECK(set == Status::kOk);
  return *endpoint_;
}

Result<void> QpChannel::connect(const link::Endpoint& local, const link::Endpoint& remote, Deadline deadline,
                                const link::BringUp& how) {
  VERBENA_ASSIGN(const wire::Handshake peer, wire::decode(remote.user_data()));
  if (remote.recv_depth != wire::receives_for(peer.depth))
    return verbena::fail(Status::kProtocol, "message::Channel::connect", 0,
                         "the peer says it posts {} receives, and its depth is {}", remote.recv_depth, peer.depth);
  if (lease_) VERBENA_TRY(nic().grant(lease_.memory_id(), {.to = nic::Grant::To::kOneGid, .gid = remote.qp.gid}));
  set_peer(peer, local, remote);
  VERBENA_TRY(link::bring_up(nic(), qp(), local, remote, how, deadline));
  connected_ = true;
  if (options_.attach == Attach::kInConnect) Connection::attach();
  return {};
}

void QpChannel::set_peer(const wire::Handshake& peer, const link::Endpoint& local,
                         const link::Endpoint& remote) noexcept {
  peer_receives_ = wire::receives_for(peer.depth);
  sent_ = lease_used_ = peer_lease_consumed_ = peer.first_count;
  peer_posted_ = peer.first_count + peer_receives_;
  in_number_ = peer.first_count & wire::kNumberMask;
  const std::uint32_t stageable = std::max(options_.eager_bytes, max_inline() - std::min(max_inline(), kCreditBytes));
  longest_send_ = std::min(peer.eager_bytes, stageable);
  peer_lease_ = peer.lease;
  peer_lease_units_ = wire::units_of(peer.lease.length);
  fragment_.wr.rdma.rkey = peer.lease.rkey;
  const std::uint64_t fragment =
      std::min({options_.fragment_bytes, peer.lease.length / 4, std::uint64_t{nic().limits().max_message}});
  if (peer.lease.length != 0)
    fragment_payload_ = static_cast<std::uint32_t>(fragment / wire::kUnit * wire::kUnit - sizeof(wire::FragmentHeader));
  const std::uint32_t depth = std::min(local.qp.max_rd_atomic, remote.qp.max_rd_atomic);
  max_reads_ = std::min(options_.max_reads, depth);
}

Result<void> QpChannel::open_lease(Deadline deadline) {
  if (peer_lease_units_ == 0 || lease_open_) return {};
  VERBENA_TRY(nic().import_window(qp(), peer_lease_, deadline));
  lease_open_ = true;
  return {};
}

Result<void> QpChannel::import_window(const nic::Window& window, Deadline deadline) {
  if (qp() == nullptr)
    return verbena::fail(reason(), "message::Channel::import_window", 0,
                         "the channel has failed, and its queue pair is destroyed: connect a new one");
  VERBENA_TRY(nic().import_window(qp(), window, deadline));
  const Status added = windows_.add(window);
  if (added == Status::kOk) return {};
  (void)nic().release_window(qp(), window);
  return verbena::fail(
      added, "message::Channel::import_window", 0, "{}",
      added == Status::kLimit ? "a channel imports at most 64 windows" : "the window wraps around the address space");
}

Result<void> QpChannel::release_window(const nic::Window& window) {
  if (windows_.remove(window) != Status::kOk)
    return verbena::fail(Status::kNotFound, "message::Channel::release_window", 0, "the window is not imported");
  // Without its queue pair the NIC has released it.
  return qp() != nullptr ? nic().release_window(qp(), window) : Result<void>{};
}

// --- receiving ----------------------------------------------------------------------------------------------------

void QpChannel::on_attached() noexcept {
  if (reason() != Status::kOk) return;
  // posted_receives_ counts them since `create`: the handshake has told them.
  receive_requests_[buffer_count_ - 1].next = nullptr;
  (void)post_receives(receive_requests_[0], buffer_count_);
  receive_requests_[buffer_count_ - 1].next = receive_requests_.data();
}

void QpChannel::mute() noexcept {
  handler_ = &nobody;
  begin_failure(Status::kClosed);
}

void QpChannel::handle(std::span<const ibv_wc> completions) noexcept {
  // Answers to what came together leave together.
  const bool is_batch = completions.size() > 1 && loop().batches();
  if (is_batch) Connection::hold();
  for (const ibv_wc& completion : completions) {
    if (completion.status != IBV_WC_SUCCESS || reason() != Status::kOk) [[unlikely]] {
      handle_failed(completion);
    } else if (engine::wr::is_receive(completion.wr_id)) {
      on_receive(completion);
    } else {
      on_sent(completion);
    }
  }
  if (reason() == Status::kOk) [[likely]]
    make_progress();
  if (is_batch) Connection::release();
}

void QpChannel::on_receive(const ibv_wc& completion) noexcept {
  took_receive();
  Status status = Status::kProtocol;
  if (completion.opcode == IBV_WC_RECV && (completion.wc_flags & IBV_WC_WITH_IMM) == 0) [[likely]] {
    status = on_eager(completion);
  } else if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    status = on_fragment(completion);
  }
  ++consumed_;
  if (status != Status::kOk) [[unlikely]]
    begin_failure(status);
}

Status QpChannel::on_eager(const ibv_wc& completion) noexcept {
  const std::byte* buffer = buffers_ + engine::wr::slot_of(completion.wr_id) * buffer_stride_;
  if (completion.byte_len < kCreditBytes) return Status::kProtocol;
  wire::Credits claim;
  std::memcpy(&claim, buffer, sizeof claim);
  if (!accept(claim)) return Status::kProtocol;
  if (completion.byte_len > kCreditBytes)
    handler_->on_message(*this, {buffer + kCreditBytes, completion.byte_len - kCreditBytes});
  return Status::kOk;
}

// Everything of the fragment but its position, number and length is the peer's claim, in memory that it can still
// write.
Status QpChannel::on_fragment(const ibv_wc& completion) noexcept {
  const std::uint32_t imm = ntohl(completion.imm_data);
  const std::uint32_t bytes = completion.byte_len;
  if (bytes <= sizeof(wire::FragmentHeader) || bytes > lease_units_ * wire::kUnit) return Status::kProtocol;
  const wire::Placement place = wire::place(in_cursor_, wire::units_of(bytes), lease_units_);
  if (lease_consumed_ + place.taken - told_lease_ > lease_units_) return Status::kProtocol;
  const std::byte* at = lease_.data() + place.at * wire::kUnit;
  const auto* words = reinterpret_cast<const std::uint64_t*>(at);
  // Atomic loads, so that the compiler reads each word once.
  const std::array<std::uint64_t, 2> copy{__atomic_load_n(&words[0], __ATOMIC_RELAXED),
                                          __atomic_load_n(&words[1], __ATOMIC_RELAXED)};
  const auto header = std::bit_cast<wire::FragmentHeader>(copy);
  const std::uint64_t total = wire::little(header.total);
  const bool first = in_total_ == 0;
  if (first) in_offset_ = 0;
  const std::uint64_t payload = bytes - sizeof(wire::FragmentHeader);
  if (!first && total != in_total_) return Status::kProtocol;
  if (total < in_offset_ || payload > total - in_offset_) return Status::kProtocol;
  const bool last = in_offset_ + payload == total;
  const std::uint32_t expected = in_number_ | (first ? wire::kFirst : 0) | (last ? wire::kLast : 0);
  if (imm != expected || !accept(header.credits)) return Status::kProtocol;
  in_total_ = last ? 0 : total;
  in_number_ = (in_number_ + 1) & wire::kNumberMask;
  in_cursor_ = place.next;
  const std::uint64_t offset = in_offset_;
  in_offset_ += payload;
  handler_->on_fragment(*this, {.total = total, .offset = offset, .bytes = {at + sizeof header, payload}});
  lease_consumed_ += place.taken;
  return Status::kOk;
}

// Counts never go back, and never pass what the handshake allows.
bool QpChannel::accept(wire::Credits claim) noexcept {
  const std::uint32_t posted = wire::little(claim.receives_posted);
  const std::uint32_t consumed = wire::little(claim.lease_consumed);
  if (posted - peer_posted_ > peer_receives_ || posted - sent_ > peer_receives_) return false;
  if (consumed - peer_lease_consumed_ > lease_used_ - peer_lease_consumed_) return false;
  peer_posted_ = posted;
  peer_lease_consumed_ = consumed;
  return true;
}

void QpChannel::refill() noexcept {
  const std::uint32_t count = consumed_ + buffer_count_ - posted_receives_;
  if (count == 0) return;
  const std::uint32_t end = (next_receive_ + count) % buffer_count_;
  ibv_recv_wr& last = receive_requests_[end == 0 ? buffer_count_ - 1 : end - 1];
  ibv_recv_wr* const linked = std::exchange(last.next, nullptr);
  const bool posted = post_receives(receive_requests_[next_receive_], count);
  last.next = linked;
  if (!posted) return;
  next_receive_ = end;
  posted_receives_ += count;
}

void QpChannel::send_update() noexcept {
  if (receive_credits() == 0 || !has_reserve()) return;  // Due still: what arrives or completes next comes by here.
  refill();
  if (reason() != Status::kOk) return;
  eager_.num_sge = max_inline() >= kCreditBytes ? gather_inline({}, {}, {}) : gather_staged({}, {}, {});
  if (post(eager_, kNoTag, Signal::kSometimes)) ++sent_;
}

// --- sending ------------------------------------------------------------------------------------------------------

inline Status QpChannel::check_eager(std::size_t total) const noexcept {
  if (reason() != Status::kOk) [[unlikely]]
    return reason();
  if (total - 1 >= longest_send_) [[unlikely]]
    return total == 0 ? Status::kBadArgument : Status::kTooLong;
  // A WRITE that waits for room goes first.
  if (receive_credits() < 2 || send_room() == 0 || writes_.first != kNoSlot) return Status::kAgain;
  return Status::kOk;
}

inline Status QpChannel::post_eager(std::uint32_t tag, Signal signal, std::span<const std::byte> a,
                                    std::span<const std::byte> b, std::span<const std::byte> c) noexcept {
  const std::size_t total = a.size() + b.size() + c.size();
  eager_.num_sge = total + kCreditBytes <= max_inline() ? gather_inline(a, b, c) : gather_staged(a, b, c);
  if (!post(eager_, tag, signal)) [[unlikely]]
    return reason();
  ++sent_;
  count().bytes += total;
  return Status::kOk;
}

Status QpChannel::send(std::span<const std::byte> a, std::span<const std::byte> b,
                       std::span<const std::byte> c) noexcept {
  if (const Status status = check_eager(a.size() + b.size() + c.size()); status != Status::kOk) [[unlikely]]
    return status;
  return post_eager(kNoTag, Signal::kSometimes, a, b, c);
}

Status QpChannel::start_send(std::span<const std::byte> a, std::span<const std::byte> b, std::uint64_t token) noexcept {
  const std::uint64_t total = a.size() + b.size();
  if (const Status status = check_eager(total); status != Status::kOk) return status;
  const std::uint32_t slot = in_flight_.begin();
  if (slot == kNoSlot) return Status::kAgain;
  work_[slot] = {.token = token, .total = total, .posted = total, .outstanding = 1, .kind = Work::Kind::kEager};
  const Status status = post_eager(in_flight_.tag(slot), Signal::kAlways, a, b, {});
  // The drain completes what was not posted as well: it must not be told of twice.
  if (status != Status::kOk) in_flight_.end(slot);
  return status;
}

int QpChannel::gather_inline(std::span<const std::byte> a, std::span<const std::byte> b,
                             std::span<const std::byte> c) noexcept {
  header_ = tell();
  eager_sge_[0] = {.addr = reinterpret_cast<std::uintptr_t>(&header_), .length = kCreditBytes, .lkey = 0};
  int parts = 1;
  for (const auto& part : {a, b, c}) {
    if (part.empty()) continue;
    eager_sge_[static_cast<std::size_t>(parts++)] = {.addr = reinterpret_cast<std::uintptr_t>(part.data()),
                                                     .length = static_cast<std::uint32_t>(part.size()),
                                                     .lkey = 0};
  }
  eager_.send_flags = IBV_SEND_INLINE;
  ++count().inline_sends;
  return parts;
}

int QpChannel::gather_staged(std::span<const std::byte> a, std::span<const std::byte> b,
                             std::span<const std::byte> c) noexcept {
  std::byte* const start = staging();
  const wire::Credits header = tell();
  std::memcpy(start, &header, sizeof header);
  std::byte* end = start + sizeof header;
  for (const auto& part : {a, b, c}) {
    if (part.empty()) continue;
    std::memcpy(end, part.data(), part.size());
    end += part.size();
  }
  eager_sge_[0] = {.addr = reinterpret_cast<std::uintptr_t>(start),
                   .length = static_cast<std::uint32_t>(end - start),
                   .lkey = memory_.lkey()};
  eager_.send_flags = 0;
  return 1;
}

Status QpChannel::start_large(std::span<const std::byte> head, LocalSpan body, std::uint64_t token) noexcept {
  if (reason() != Status::kOk) return reason();
  if (!lease_open_) return Status::kUnsupported;
  if (head.size() + body.length == 0) return Status::kBadArgument;
  if (head.size() > kMaxHeadBytes) return Status::kTooLong;
  const std::uint32_t slot = in_flight_.begin();
  if (slot == kNoSlot) return Status::kAgain;
  if (!head.empty()) std::memcpy(head_of(slot), head.data(), head.size());
  work_[slot] = {.token = token,
                 .local = body,
                 .total = head.size() + body.length,
                 .head_bytes = static_cast<std::uint32_t>(head.size()),
                 .kind = Work::Kind::kLarge};
  larges_.push(work_, slot);
  post_large();
  return Status::kOk;
}

Status QpChannel::start_read(LocalSpan local, RemoteSpan remote, std::uint64_t token) noexcept {
  if (reason() != Status::kOk) return reason();
  if (remote.length == 0 || local.length < remote.length) return Status::kBadArgument;
  if (max_reads_ == 0) return Status::kUnsupported;
  if (const Status inside = windows_.check(remote, IBV_ACCESS_REMOTE_READ); inside != Status::kOk) return inside;
  const std::uint32_t slot = in_flight_.begin();
  if (slot == kNoSlot) return Status::kAgain;
  work_[slot] = {.token = token, .local = local, .remote = remote, .total = remote.length, .kind = Work::Kind::kRead};
  reads_.push(work_, slot);
  post_reads();
  return Status::kOk;
}

Status QpChannel::start_write(LocalSpan local, RemoteSpan remote, std::uint64_t token) noexcept {
  if (reason() != Status::kOk) return reason();
  if (local.length == 0 || remote.length < local.length) return Status::kBadArgument;
  remote.length = local.length;
  if (const Status inside = windows_.check(remote, IBV_ACCESS_REMOTE_WRITE); inside != Status::kOk) return inside;
  const std::uint32_t slot = in_flight_.begin();
  if (slot == kNoSlot) return Status::kAgain;
  work_[slot] = {.token = token, .local = local, .remote = remote, .total = remote.length, .kind = Work::Kind::kWrite};
  writes_.push(work_, slot);
  post_writes();
  return Status::kOk;
}

Status QpChannel::check_word(const RemoteSpan& word) noexcept {
  if (word.address % sizeof(std::uint64_t) != 0 || word.length != sizeof(std::uint64_t)) return Status::kBadArgument;
  if (max_reads_ == 0 || !has_atomics_) return Status::kUnsupported;
  return check_piece(word, IBV_ACCESS_REMOTE_ATOMIC);
}

Status QpChannel::start_atomic(const Change& change, LocalSpan result, RemoteSpan word, std::uint64_t token) noexcept {
  constexpr std::uint64_t kBytes = sizeof(std::uint64_t);
  if (const Status checked = check_word(word); checked != Status::kOk) return checked;
  if (result.length < kBytes) return Status::kBadArgument;
  const std::uint32_t slot = in_flight_.begin();
  if (slot == kNoSlot) return Status::kAgain;
  work_[slot] = {
      .token = token, .local = result, .remote = word, .change = change, .total = kBytes, .kind = Work::Kind::kAtomic};
  reads_.push(work_, slot);
  post_reads();
  return Status::kOk;
}

// As remote::Link does it: everything of one work request in one function, and no slot in flight.
inline Status QpChannel::transfer(ibv_send_wr& request, const Queue& waiting, LocalSpan local, RemoteSpan remote,
                                  std::chrono::nanoseconds timeout) noexcept {
  if (send_room() == 0 || waiting.first != kNoSlot || loop().in_handler()) [[unlikely]]
    return Status::kAgain;
  piece_sge_ = {.addr = reinterpret_cast<std::uintptr_t>(local.data),
                .length = static_cast<std::uint32_t>(remote.length),
                .lkey = local.lkey};
  request.wr.rdma.remote_addr = remote.address;
  request.wr.rdma.rkey = remote.rkey;
  count().bytes += remote.length;
  if (!post(request, kNoTag, Signal::kAlways)) [[unlikely]]
    return reason();
  const std::uint32_t mine = position();
  {
    const engine::CompletionLoop::Blocked blocked(loop());
    loop().poll();
  }
  if (is_retired(mine) && reason() == Status::kOk) [[likely]]
    return Status::kOk;
  return wait_for_position(mine, timeout);
}

Status QpChannel::wait_for_position(std::uint32_t position, std::chrono::nanoseconds timeout) noexcept {
  const auto is_over = [this, position] { return is_retired(position) || reason() != Status::kOk; };
  const Status waited = loop().wait_until(is_over, Deadline::after(timeout));
  if (waited == Status::kOk && reason() == Status::kOk) return Status::kOk;
  begin_failure(Status::kTimedOut);
  // Bounded by the drain's own time.
  (void)loop().wait_until([this] { return is_drained(); }, Deadline::never());
  return waited == Status::kTimedOut ? waited : reason();
}

Status QpChannel::read(LocalSpan local, RemoteSpan remote, std::chrono::nanoseconds timeout) noexcept {
  if (local.length < remote.length) [[unlikely]]
    return Status::kBadArgument;
  if (const Status checked = check_piece(remote, IBV_ACCESS_REMOTE_READ); checked != Status::kOk) [[unlikely]]
    return checked;
  if (max_reads_ == 0) [[unlikely]]
    return Status::kUnsupported;
  if (move_now(&nic::Direct::read, local.data, local.lkey, remote) == Status::kOk) return Status::kOk;
  return transfer(read_, reads_, local, remote, timeout);
}

Status QpChannel::write(LocalSpan local, RemoteSpan remote, std::chrono::nanoseconds timeout) noexcept {
  if (remote.length < local.length) [[unlikely]]
    return Status::kBadArgument;
  remote.length = local.length;
  if (const Status checked = check_piece(remote, IBV_ACCESS_REMOTE_WRITE); checked != Status::kOk) [[unlikely]]
    return checked;
  if (move_now(&nic::Direct::write, local.data, local.lkey, remote) == Status::kOk) return Status::kOk;
  return transfer(write_, writes_, local, remote, timeout);
}

Status QpChannel::read_now(std::span<std::byte> to, RemoteSpan from) noexcept {
  if (max_reads_ == 0) [[unlikely]]
    return Status::kUnsupported;
  from.length = to.size();
  const Status checked = check_piece(from, IBV_ACCESS_REMOTE_READ);
  return checked == Status::kOk ? move_now(&nic::Direct::read_plain, to.data(), 0, from) : checked;
}

Status QpChannel::write_now(std::span<const std::byte> from, RemoteSpan to) noexcept {
  to.length = from.size();
  const Status checked = check_piece(to, IBV_ACCESS_REMOTE_WRITE);
  auto* const local = const_cast<std::byte*>(from.data());  // Is only read.
  return checked == Status::kOk ? move_now(&nic::Direct::write_plain, local, 0, to) : checked;
}

Status QpChannel::change_now(const Change& change, RemoteSpan word, std::uint64_t& old) noexcept {
  if (max_reads_ == 0) [[unlikely]]
    return Status::kUnsupported;
  if (const Status checked = check_word(word); checked != Status::kOk) return checked;
  const nic::Direct* const now = direct();
  if (now == nullptr ||
      !now->atomic(qp(), change.opcode, change.compare_add, change.swap, word.address, word.rkey, old))
    return Status::kAgain;
  went_directly(sizeof old);
  return Status::kOk;
}

Status QpChannel::read_list_now(std::span<const nic::PlainRead> reads, std::uint32_t rkey) noexcept {
  if (max_reads_ == 0) [[unlikely]]
    return Status::kUnsupported;
  std::uint64_t bytes = 0;
  for (const nic::PlainRead& read : reads) {
    const RemoteSpan from{.address = read.from, .length = read.bytes, .rkey = rkey};
    if (const Status checked = check_piece(from, IBV_ACCESS_REMOTE_READ); checked != Status::kOk) [[unlikely]]
      return checked;
    bytes += read.bytes;
  }
  const nic::Direct* const now = direct();
  if (now == nullptr || !now->read_list(qp(), reads.data(), reads.size(), rkey)) [[unlikely]]
    return Status::kAgain;
  went_directly(bytes, reads.size());
  return Status::kOk;
}

Status QpChannel::bind(ibv_mw& window, std::uint32_t rkey, const ibv_mw_bind_info& info) noexcept {
  if (reason() != Status::kOk) return reason();
  if (send_room() == 0) return Status::kAgain;
  ibv_send_wr request{};
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = kAlone;
  request.bind_mw = {.mw = &window, .rkey = rkey, .bind_info = info};
  if (!post(request, kNoTag, Signal::kSometimes)) return reason();
  // A provider reads the window's key of now when the request reaches it, and the caller changes that next: this one
  // cannot wait for the doorbell of a batch.
  flush();
  return Status::kOk;
}

Status QpChannel::start_invalidate(std::uint32_t rkey, std::uint64_t token) noexcept {
  if (reason() != Status::kOk) return reason();
  const std::uint32_t slot = send_room() != 0 ? in_flight_.begin() : kNoSlot;
  if (slot == kNoSlot) return Status::kAgain;
  work_[slot] = {.token = token, .outstanding = 1, .kind = Work::Kind::kInvalidate};
  ibv_send_wr request{};
  request.opcode = IBV_WR_LOCAL_INV;
  request.send_flags = kAlone;
  request.invalidate_rkey = rkey;
  if (post(request, in_flight_.tag(slot), Signal::kAlways)) return Status::kOk;
  in_flight_.end(slot);  // The drain completes what was not posted as well.
  return reason();
}

void QpChannel::make_progress() noexcept {
  if (consumed_ + buffer_count_ - posted_receives_ >= buffer_count_ / 4) refill();
  if (is_update_due()) [[unlikely]]
    send_update();
  if (writes_.first != kNoSlot) post_writes();
  if (larges_.first != kNoSlot) post_large();
  if (reads_.first != kNoSlot) post_reads();
}

// A quarter of credits and send queue is left to eager messages, which a stream of fragments would starve otherwise.
// No deadlock by that: at rest at most depth/2 of R receives are untold, and R - depth/2 > R/4 + 2 for each depth.
void QpChannel::post_large() noexcept {
  while (larges_.first != kNoSlot && writes_.first == kNoSlot && reason() == Status::kOk) {
    if (receive_credits() < 2 + peer_receives_ / 4 || send_room() < 1 + send_slots() / 4) return;
    const std::uint32_t slot = larges_.first;
    if (!post_fragment(slot)) return;
    if (work_[slot].posted == work_[slot].total) larges_.pop(work_);
  }
}
static_assert(wire::receives_for(wire::kMinDepth) - wire::kMinDepth / 2 > 2 + wire::receives_for(wire::kMinDepth) / 4);

bool QpChannel::post_fragment(std::uint32_t slot) noexcept {
  Work& work = work_[slot];
  const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(work.total - work.posted, fragment_payload_));
  const wire::Placement place =
      wire::place(out_cursor_, wire::units_of(bytes + sizeof(wire::FragmentHeader)), peer_lease_units_);
  if (place.taken > peer_lease_units_ - (lease_used_ - peer_lease_consumed_)) return false;
  const bool last = work.posted + bytes == work.total;
  fragment_.num_sge = gather_fragment(work, slot, bytes);
  fragment_.wr.rdma.remote_addr = peer_lease_.address + place.at * wire::kUnit;
  fragment_.imm_data = htonl(out_number_ | (work.posted == 0 ? wire::kFirst : 0) | (last ? wire::kLast : 0));
  // Only the last is signaled for the operation: on a reliable connection it completes after the ones before.
  const std::uint32_t tag = last ? in_flight_.tag(slot) : kNoTag;
  if (!post(fragment_, tag, last ? Signal::kAlways : Signal::kSometimes)) return false;
  work.posted += bytes;
  if (last) work.outstanding = 1;
  ++sent_;
  lease_used_ += place.taken;
  out_cursor_ = place.next;
  out_number_ = (out_number_ + 1) & wire::kNumberMask;
  count().bytes += bytes;
  return true;
}

int QpChannel::gather_fragment(const Work& work, std::uint32_t slot, std::uint32_t bytes) noexcept {
  const wire::FragmentHeader header{.credits = tell(), .total = wire::little(work.total)};
  std::memcpy(staging(), &header, sizeof header);
  fragment_sge_[0] = {
      .addr = reinterpret_cast<std::uintptr_t>(staging()), .length = sizeof header, .lkey = memory_.lkey()};
  std::size_t parts = 1;
  std::uint64_t at = work.posted;
  if (at < work.head_bytes) {
    const auto piece = static_cast<std::uint32_t>(std::min<std::uint64_t>(work.head_bytes - at, bytes));
    fragment_sge_[parts++] = {
        .addr = reinterpret_cast<std::uintptr_t>(head_of(slot) + at), .length = piece, .lkey = memory_.lkey()};
    at += piece;
    bytes -= piece;
  }
  if (bytes != 0)
    fragment_sge_[parts++] = {.addr = reinterpret_cast<std::uintptr_t>(work.local.data + (at - work.head_bytes)),
                              .length = bytes,
                              .lkey = work.local.lkey};
  return static_cast<int>(parts);
}

bool QpChannel::post_piece(ibv_send_wr& request, std::uint32_t slot) noexcept {
  Work& work = work_[slot];
  const auto bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(work.total - work.posted, nic().limits().max_message));
  piece_sge_ = {.addr = reinterpret_cast<std::uintptr_t>(work.local.data + work.posted),
                .length = bytes,
                .lkey = work.local.lkey};
  request.wr.rdma.remote_addr = work.remote.address + work.posted;
  request.wr.rdma.rkey = work.remote.rkey;
  if (!post(request, in_flight_.tag(slot), Signal::kAlways)) return false;
  work.posted += bytes;
  ++work.outstanding;
  count().bytes += bytes;
  return true;
}

bool QpChannel::post_atomic(std::uint32_t slot) noexcept {
  Work& work = work_[slot];
  piece_sge_ = {.addr = reinterpret_cast<std::uintptr_t>(work.local.data),
                .length = static_cast<std::uint32_t>(work.total),
                .lkey = work.local.lkey};
  atomic_.opcode = work.change.opcode;
  atomic_.wr.atomic.remote_addr = work.remote.address;
  atomic_.wr.atomic.rkey = work.remote.rkey;
  atomic_.wr.atomic.compare_add = work.change.compare_add;
  atomic_.wr.atomic.swap = work.change.swap;
  if (!post(atomic_, in_flight_.tag(slot), Signal::kAlways)) return false;
  work.posted = work.total;
  ++work.outstanding;
  count().bytes += work.total;
  return true;
}

void QpChannel::post_reads() noexcept {
  while (reads_.first != kNoSlot && reads_out_ < max_reads_ && send_room() != 0 && reason() == Status::kOk) {
    const std::uint32_t slot = reads_.first;
    if (!(work_[slot].kind == Work::Kind::kAtomic ? post_atomic(slot) : post_piece(read_, slot))) return;
    ++reads_out_;
    if (work_[slot].posted == work_[slot].total) reads_.pop(work_);
  }
}

void QpChannel::post_writes() noexcept {
  while (writes_.first != kNoSlot && send_room() != 0 && reason() == Status::kOk) {
    const std::uint32_t slot = writes_.first;
    if (!post_piece(write_, slot)) return;
    if (work_[slot].posted == work_[slot].total) writes_.pop(work_);
  }
}

void QpChannel::on_sent(const ibv_wc& completion) noexcept {
  retire(completion.wr_id);
  const std::uint32_t slot = in_flight_.find(completion.wr_id);
  if (slot == kNoSlot) return;
  Work& work = work_[slot];
  if (work.kind == Work::Kind::kRead || work.kind == Work::Kind::kAtomic) --reads_out_;
  if (--work.outstanding == 0 && work.posted == work.total) complete(slot, Status::kOk);
}

void QpChannel::complete(std::uint32_t slot, Status status) noexcept {
  const std::uint64_t token = work_[slot].token;
  in_flight_.end(slot);
  handler_->on_complete(*this, token, status);
}

void QpChannel::on_drained() noexcept {
  larges_ = reads_ = writes_ = {};
  for (std::uint32_t slot = 0; slot < in_flight_.capacity(); ++slot)
    if (in_flight_.live(slot)) complete(slot, reason());
  handler_->on_failure(*this, reason());
}

}  // namespace

engine::QueueOptions queues_needed(const Options& options) noexcept {
  return {.sends = sends_for(options),
          .receives = wire::receives_for(options.depth),
          .send_sge = 4,
          .max_inline = kCreditBytes + options.eager_bytes,
          .first_position = options.first_count};
}

host::Footprint footprint(nic::Kind kind, const nic::Limits& limits, const Options& options) {
  using host::PoolKind;
  const engine::QueueOptions queues = queues_needed(options);
  const std::uint32_t max_inline = engine::Connection::qp_options(queues, limits).max_inline;
  host::Footprint pools;
  pools.add({.name = "buffers",
             .kind = PoolKind::kRegistered,
             .bytes_each = layout_of(options, max_inline).bytes,
             .node = options.node});
  if (options.lease_bytes != 0)
    pools.add({.name = "lease",
               .kind = PoolKind::kRegistered,
               .bytes_each = align_up(options.lease_bytes, wire::kUnit),
               .node = options.node});
  pools.add({.name = "channel", .bytes_each = sizeof(QpChannel)});
  pools.add({.name = "operations",
             .count = options.max_operations,
             .bytes_each = sizeof(Work) + engine::InFlight::bytes_for(1)});
  pools.add(
      {.name = "receive requests", .count = queues.receives, .bytes_each = sizeof(ibv_recv_wr) + sizeof(ibv_sge)});
  pools.add("connection", 1, engine::Connection::footprint(kind, limits, queues));
  return pools;
}

std::uint32_t completions_needed(const Options& options) noexcept {
  const engine::QueueOptions queues = queues_needed(options);
  return engine::Connection::completions_needed(queues.sends, queues.receives);
}

Result<std::unique_ptr<Channel>> Channel::create(engine::CompletionLoop& loop, ibv_pd* pd, const Options& options,
                                                 Handler& handler) {
  VERBENA_TRY(check(options, loop.nic()));
  auto channel = std::make_unique<QpChannel>(loop, options, handler);
  VERBENA_TRY(channel->create(pd));
  return channel;
}

Result<std::span<const std::byte>> Channel::user_data_of(const link::Endpoint& remote) {
  VERBENA_ASSIGN(const wire::Handshake handshake, wire::decode(remote.user_data()));
  return remote.user_data().subspan(handshake.bytes);
}

}  // namespace verbena::message
