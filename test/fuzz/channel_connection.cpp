// A connection against a peer that has met it properly and then posts what it likes: credits, lengths, fragments
// anywhere in the lease. A peer that has kept to the rules so far has lost nothing; one that has not is dropped once.
#include "channel/bounce.hpp"
#include "channel/connection.hpp"
#include "channel/wire.hpp"
#include "engine/loop.hpp"
#include "host/arena.hpp"
#include "input.hpp"
#include "must.hpp"
#include "nic/buffer_pool.hpp"

#include <arpa/inet.h>

#include <array>
#include <optional>

namespace verbena::fuzz::channel_connection {
namespace {

using namespace channel;

constexpr std::uint32_t kDepth = 8;
constexpr std::uint32_t kEagerBytes = 256;
constexpr std::uint64_t kLeaseBytes = 4096;
constexpr std::size_t kArenaBytes = 16 * 1024;
constexpr std::size_t kReceiveOffset = 8 * 1024;
constexpr std::uint32_t kAll = wire::receives_for(kDepth);

/// What stays from input to input.
struct World {
  World()
      : nic(must(nic::open_soft({.max_qp = 64, .max_mr = 256}))),
        loop(must(engine::CompletionLoop::create(*nic, {.max_connections = 2, .cqe = 1024}))),
        arena(must(host::Arena::create(
            {.size_bytes = kArenaBytes, .share = host::Share::kReadWrite, .prefault_threads = 1, .name = "fuzz"}))),
        memory(must(nic->attach(arena, {.to = nic::Grant::To::kNobody}))),
        pd(*nic, must(nic->alloc_pd())),
        cq(*nic, must(nic->create_cq(256, nullptr))),
        mr(*nic, must(nic->reg_mr(pd.get(), arena.data(), kArenaBytes, reinterpret_cast<std::uintptr_t>(arena.data()),
                                  IBV_ACCESS_LOCAL_WRITE))),
        buffers(*nic, pd.get()) {
    must(bounce.open(buffers, {}));
  }
  ~World() {
    mr.reset();
    must(nic->detach(memory));
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  std::unique_ptr<nic::Nic> nic;
  std::unique_ptr<engine::CompletionLoop> loop;
  host::Arena arena;
  std::uint64_t memory;
  nic::Pd pd;
  nic::Cq cq;
  nic::Mr mr;
  nic::BufferPool buffers;
  Bounce bounce;
};
World& world() {
  static World the_world;
  return the_world;
}

/// The victim's user: what it is given must make sense whatever the peer does.
class Checker final : public Handler {
 public:
  void on_message(Connection&, std::span<const std::byte> body) noexcept override {
    VERBENA_CHECK(failures == 0 && !body.empty() && body.size() <= kEagerBytes);
    const Tight copy(body);
    ++messages;
  }
  void on_fragment(Connection&, const Fragment& fragment) noexcept override {
    VERBENA_CHECK(failures == 0 && !fragment.bytes.empty());
    VERBENA_CHECK(is_inside(fragment.bytes, lease));
    VERBENA_CHECK(offset_ == 0 || fragment.total == total_);
    VERBENA_CHECK(fragment.offset == offset_ && fragment.bytes.size() <= fragment.total - offset_);
    total_ = fragment.total;
    offset_ = fragment.last() ? 0 : offset_ + fragment.bytes.size();
    const Tight copy(fragment.bytes);
    ++fragments;
  }
  void on_complete(Connection&, const Completion&) noexcept override { VERBENA_CHECK(false); }  // Starts nothing.
  void on_end(Connection&, Status reason) noexcept override {
    VERBENA_CHECK(reason != Status::kOk);
    ++failures;
  }
  Bytes lease;
  std::uint64_t messages = 0;
  std::uint64_t fragments = 0;
  int failures = 0;

 private:
  std::uint64_t total_ = 0;
  std::uint64_t offset_ = 0;
};

class Session {
 public:
  explicit Session(Input in) : in_(in) {
    World& w = world();
    const Options options{.depth = kDepth, .eager_bytes = kEagerBytes, .lease_bytes = kLeaseBytes};
    const Memory memory{.pd = w.pd.get(), .buffers = &w.buffers, .bounce = &w.bounce};
    connection_ = must(Connection::create(*w.loop, memory, options, checker_));
    const link::Endpoint victim = must(connection_->describe({}));
    nic::QpOptions qp_options{.send_cq = w.cq.get(), .recv_cq = w.cq.get()};
    qp_ = nic::Qp(*w.nic, must(w.nic->create_qp(w.pd.get(), qp_options)));
    link::Endpoint mine = link::describe(*w.nic, qp_.get(), kAll);
    VERBENA_CHECK(mine.set_user_data(wire::encode({.depth = kDepth, .eager_bytes = kEagerBytes}).bytes()) ==
                  Status::kOk);
    must(connection_->meet(mine));
    must(connection_->connect(patience()));
    connection_->attach();
    must(link::bring_up(*w.nic, qp_.get(), mine, victim, {}, patience()));
    lease_ = must(wire::decode(victim.user_data())).lease;
    checker_.lease = {reinterpret_cast<const std::byte*>(lease_.address), lease_.length};
    must(w.nic->import_window(qp_.get(), lease_, patience()));
    for (std::uint32_t i = 0; i < kAll; ++i) post_receive();
    w.loop->poll();
  }
  ~Session() {
    settle();
    if (honest_) {
      VERBENA_CHECK(connection_->alive() && checker_.failures == 0);
      VERBENA_CHECK(checker_.messages == sent_messages_ && checker_.fragments == sent_fragments_);
    }
    if (!connection_->alive()) {
      const Deadline deadline = patience();
      while (!connection_->drained()) {
        VERBENA_CHECK(!deadline.passed());
        settle();
      }
      VERBENA_CHECK(checker_.failures == 1);
    }
    connection_.reset();
    qp_.reset();
    settle();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void run() {
    enum class Op : std::uint8_t { kEager, kFragment, kSend, kReceive, kPoll, kEnd };
    for (int i = 0; i < 32 && !in_.empty(); ++i) {
      switch (static_cast<Op>(in_.take<std::uint8_t>() % static_cast<std::uint8_t>(Op::kEnd))) {
        case Op::kEager: eager(); break;
        case Op::kFragment: fragment(); break;
        case Op::kSend: (void)connection_->send(Tight(std::size_t{1} + in_.take<std::uint8_t>()).bytes()); break;
        case Op::kReceive: repost(); break;
        case Op::kPoll: settle(); break;
        case Op::kEnd: break;
      }
    }
  }

 private:
  /// The truth, or with a lie's bit set what the input says.
  template <class T>
  [[nodiscard]] T told(T truth, std::uint8_t lies, unsigned bit) {
    if ((lies >> bit & 1U) == 0) return truth;
    const auto claim = in_.take<T>();
    honest_ = honest_ && claim == truth;
    return claim;
  }
  [[nodiscard]] wire::Credits credits(std::uint8_t lies) {
    const auto posted = told(posted_, lies, 0);
    return {.receives_posted = posted, .lease_consumed = told(std::uint32_t{0}, lies, 1)};
  }

  void eager() {
    const auto lies = in_.take<std::uint8_t>();
    const std::uint32_t truth = 8 + in_.take<std::uint8_t>() % kEagerBytes;  // 8: a credit update.
    const wire::Credits front = credits(lies);
    const std::uint32_t length = told(static_cast<std::uint16_t>(truth), lies, 2) % (8 + kEagerBytes + 64U);
    honest_ = honest_ && length >= 8 && length <= 8 + kEagerBytes;
    std::memcpy(world().arena.data(), &front, sizeof front);
    ibv_send_wr wr{};
    wr.opcode = (lies & 8U) == 0 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM;
    honest_ = honest_ && wr.opcode == IBV_WR_SEND;
    if (post(wr, length) && length > 8) ++sent_messages_;
  }

  void fragment() {
    const auto lies = in_.take<std::uint8_t>();
    if (left_ == 0) total_ = left_ = std::uint64_t{1} + in_.take<std::uint16_t>();
    const bool first = left_ == total_;
    const auto wanted = std::uint64_t{1} + in_.take<std::uint16_t>() % (kLeaseBytes / 4);
    const auto payload = static_cast<std::uint32_t>(std::min(wanted, left_));
    const bool last = payload == left_;
    const std::uint32_t truth = sizeof(wire::FragmentHeader) + payload;
    const wire::Placement place =
        wire::place(cursor_, wire::units_of(truth), static_cast<std::uint32_t>(kLeaseBytes / wire::kUnit));
    // What the victim gives back it tells in messages, which nobody reads here: the lease is enough for one round.
    taken_ += place.taken;
    honest_ = honest_ && taken_ <= kLeaseBytes / wire::kUnit;
    const wire::FragmentHeader header{.credits = credits(lies), .total = told(total_, lies, 2)};
    const auto right_imm = number_ | (first ? wire::kFirst : 0) | (last ? wire::kLast : 0);
    const auto imm = told(right_imm, lies, 3);
    const std::uint32_t length =
        told(static_cast<std::uint16_t>(truth), lies, 4) % static_cast<std::uint32_t>(kLeaseBytes + 64);
    const std::uint64_t at = told(static_cast<std::uint16_t>(place.at), lies, 5) % (kLeaseBytes / wire::kUnit + 1);
    std::memcpy(world().arena.data(), &header, sizeof header);
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.imm_data = htonl(imm);
    wr.wr.rdma.remote_addr = lease_.address + at * wire::kUnit;
    wr.wr.rdma.rkey = lease_.rkey;
    if (!post(wr, length)) return;
    ++sent_fragments_;
    cursor_ = place.next;
    number_ = (number_ + 1) & wire::kNumberMask;
    left_ -= payload;
  }

  bool post(ibv_send_wr& wr, std::uint32_t length) {
    ibv_sge sge{
        .addr = reinterpret_cast<std::uintptr_t>(world().arena.data()), .length = length, .lkey = world().mr->lkey};
    wr.sg_list = &sge;
    wr.num_sge = length == 0 ? 0 : 1;
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    const bool posted = ibv_post_send(qp_.get(), &wr, &bad) == 0;
    // The next one overwrites these bytes: they must have gone.
    settle();
    return posted;
  }
  void post_receive() {
    ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(world().arena.data() + kReceiveOffset),
                .length = 8 + kEagerBytes,
                .lkey = world().mr->lkey};
    ibv_recv_wr wr{.wr_id = 0, .next = nullptr, .sg_list = &sge, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(qp_.get(), &wr, &bad) == 0) ++posted_;
  }
  /// As many as have been used: more would be more than the depth that was agreed.
  void repost() {
    for (; used_ > 0; --used_) post_receive();
  }
  void settle() {
    std::array<ibv_wc, 16> completions{};
    for (int i = 0; i < 4; ++i) {
      const int count = ibv_poll_cq(world().cq.get(), static_cast<int>(completions.size()), completions.data());
      VERBENA_CHECK(count >= 0);
      for (const ibv_wc& wc : std::span(completions).first(static_cast<std::size_t>(count))) {
        if (wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV) ++used_;
        VERBENA_CHECK(!honest_ || wc.status == IBV_WC_SUCCESS);
      }
      world().loop->poll();
    }
  }

  Input in_;
  Checker checker_;
  std::unique_ptr<Connection> connection_;
  nic::Qp qp_;
  nic::Window lease_;
  bool honest_ = true;
  std::uint32_t posted_ = 0;
  std::uint32_t used_ = 0;
  std::uint32_t cursor_ = 0;
  std::uint32_t taken_ = 0;
  std::uint32_t number_ = 0;
  std::uint64_t total_ = 0;
  std::uint64_t left_ = 0;
  std::uint64_t sent_messages_ = 0;
  std::uint64_t sent_fragments_ = 0;
};

}  // namespace
}  // namespace verbena::fuzz::channel_connection

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::channel_connection::Session({data, size}).run();
  return 0;
}
