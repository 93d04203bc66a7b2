// A whole soft NIC against a peer of this process that speaks the rendezvous by hand: requests of any bytes with any
// descriptors, offers of any geometry, and then any words in the memory that it handed over, which the NIC maps, polls
// and sends through. A small model says what each request is answered.
#include "host/arena.hpp"
#include "input.hpp"
#include "link/link.hpp"
#include "must.hpp"
#include "nic/nic.hpp"
#include "raw_peer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <vector>

namespace verbena::fuzz::soft_rendezvous {
namespace {

using namespace nic::soft;
using nic::Grant;

constexpr std::uint32_t kPeerQp = 0x00abcdef;
constexpr std::size_t kReceiveStride = 16 * 1024;
constexpr std::size_t kReceives = 4;
constexpr std::size_t kSendOffset = kReceives * kReceiveStride;
constexpr std::size_t kArenaBytes = 2 * kSendOffset;
constexpr std::byte kGuard{0xc3};
constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// What stays from input to input.
struct World {
  World()
      : nic(must(nic::open_soft({.max_qp = 64, .max_mr = 256}))),
        arena(must(host::Arena::create(
            {.size_bytes = kArenaBytes, .share = host::Share::kReadWrite, .prefault_threads = 1, .name = "fuzz"}))),
        secret(must(host::Arena::create(
            {.size_bytes = 4096, .share = host::Share::kReadOnly, .prefault_threads = 1, .name = "secret"}))),
        memory(must(nic->attach(arena, {.to = Grant::To::kAnyPeer}))),
        secret_memory(must(nic->attach(secret, {.to = Grant::To::kNobody}))),
        pd(*nic, must(nic->alloc_pd())),
        cq(*nic, must(nic->create_cq(256, nullptr))),
        mr(*nic, must(nic->reg_mr(pd.get(), arena.data(), kArenaBytes, reinterpret_cast<std::uintptr_t>(arena.data()),
                                  IBV_ACCESS_LOCAL_WRITE))) {
    // Keeps the connection to itself open between inputs.
    anchor = connected_qp(kPeerQp + 1);
  }
  ~World() {
    anchor.reset();
    mr.reset();
    must(nic->detach(memory));
    must(nic->detach(secret_memory));
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  /// A QP in RTS that waits for the offer of a QP of this very process.
  [[nodiscard]] nic::Qp connected_qp(std::uint32_t peer_qp) {
    nic::QpOptions options{.send_cq = cq.get(), .recv_cq = cq.get(), .max_send_wr = 16, .max_recv_wr = 16};
    nic::Qp qp(*nic, must(nic->create_qp(pd.get(), options)));
    const link::Endpoint mine = link::describe(*nic, qp.get(), 16);
    link::Endpoint peer = mine;
    peer.qp.qp_num = peer_qp;
    must(link::bring_up(*nic, qp.get(), mine, peer, {}, patience()));
    return qp;
  }

  std::unique_ptr<nic::Nic> nic;
  host::Arena arena;
  host::Arena secret;
  std::uint64_t memory;
  std::uint64_t secret_memory;
  nic::Pd pd;
  nic::Cq cq;
  nic::Mr mr;
  nic::Qp anchor;
};
World& world() {
  static World the_world;
  return the_world;
}

/// One input's peer and QP.
class Session {
 public:
  explicit Session(Input in) : in_(in), before_(world().nic->objects()), qp_(world().connected_qp(kPeerQp)) {
    std::memset(world().arena.data(), static_cast<int>(kGuard), kArenaBytes);
  }
  ~Session() {
    poll();
    qp_.reset();
    poll();  // Its completions may be there still; then none of it is.
    check_guards();
    VERBENA_CHECK(world().nic->objects().qps == before_.qps && world().nic->objects().imports == before_.imports);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void run() {
    enum class Op : std::uint8_t {
      kHello,
      kOffer,
      kMemory,
      kWake,
      kAny,
      kRaw,
      kReceive,
      kSend,
      kSlot,
      kWord,
      kPoll,
      kConfirm,
      kEnd
    };
    for (int i = 0; i < 64 && !in_.empty(); ++i) {
      switch (static_cast<Op>(in_.take<std::uint8_t>() % static_cast<std::uint8_t>(Op::kEnd))) {
        case Op::kHello: ask(request(RequestType::kHello), {}); break;
        case Op::kOffer: offer(); break;
        case Op::kMemory: ask_for_memory(); break;
        case Op::kWake: wake(); break;
        case Op::kAny: any_request(); break;
        case Op::kRaw: raw_bytes(); break;
        case Op::kReceive: post_receive(); break;
        case Op::kSend: post_send(); break;
        case Op::kSlot: write_slot(); break;
        case Op::kWord: write_word(); break;
        case Op::kPoll: poll(); break;
        case Op::kConfirm: confirm(); break;
        case Op::kEnd: break;
      }
    }
  }

 private:
  [[nodiscard]] static Request request(RequestType type) {
    Request request;
    request.type = type;
    request.my_gid = world().nic->gid();
    return request;
  }

  // --- the rendezvous socket

  void connect() {
    if (client_) return;
    client_.emplace();
    VERBENA_CHECK(client_->connect(world().nic->gid()));
    greeted_ = false;
  }
  void hang_up_expected() {
    VERBENA_CHECK(client_->hung_up());
    client_.reset();
  }

  /// What SoftNic must answer. Nothing: it hears what has no answer.
  [[nodiscard]] std::optional<Answer> expected(const Request& request, std::span<const int> fds) const {
    if (request.magic != kMagic) return Answer::kBad;
    const bool is_heard =
        request.type == RequestType::kWake || request.type == RequestType::kServe || request.type == RequestType::kTake;
    if (is_heard && greeted_) return std::nullopt;
    if (request.version != kLayoutVersion) return Answer::kVersion;
    switch (request.type) {
      case RequestType::kHello: return Answer::kOk;
      case RequestType::kOffer: {
        const bool wanted = request.bell_count <= kMaxBells && fds.size() == 1 + std::size_t{request.bell_count};
        const bool ring = wanted && std::ranges::all_of(fds.subspan(1), is_eventfd);
        return greeted_ && ring ? Answer::kOk : Answer::kBad;
      }
      case RequestType::kMemory:
        if (greeted_ && request.memory_id == world().memory) return Answer::kOk;
        return greeted_ && request.memory_id == world().secret_memory ? Answer::kNotGranted : Answer::kUnknown;
      case RequestType::kConfirm: return greeted_ ? Answer::kUnknown : Answer::kBad;
      case RequestType::kServe:
      case RequestType::kTake:
      case RequestType::kWake: break;
    }
    return Answer::kBad;
  }

  void ask(const Request& request, std::span<const int> fds, Bytes attested = {}) {
    connect();
    std::vector<std::byte> message(sizeof request + attested.size());
    std::memcpy(message.data(), &request, sizeof request);
    std::ranges::copy(attested, message.begin() + sizeof request);
    send(message, fds);
    if (request.attested_bytes != attested.size()) return hang_up_expected();
    const auto answer = expected(request, fds);
    if (!answer) return;
    Reply reply;
    Fds received;
    VERBENA_CHECK(client_->take(reply, received));
    VERBENA_CHECK(reply.magic == kMagic && reply.version == kLayoutVersion && same_gid(reply.gid));
    VERBENA_CHECK(reply.answer == *answer);
    const bool is_hello = request.type == RequestType::kHello && *answer == Answer::kOk;
    const bool is_memory = request.type == RequestType::kMemory && *answer == Answer::kOk;
    VERBENA_CHECK(received.count == (is_hello ? 2U : 0U) + (is_memory ? 1U : 0U));
    if (is_memory) VERBENA_CHECK(reply.size == kArenaBytes && reply.writable == 1);
    greeted_ = greeted_ || is_hello;
    if (*answer == Answer::kBad || *answer == Answer::kVersion) hang_up_expected();
  }
  void send(Bytes bytes, std::span<const int> fds) { VERBENA_CHECK(client_->send(bytes.data(), bytes.size(), fds)); }
  [[nodiscard]] static bool same_gid(const ibv_gid& gid) {
    return std::memcmp(&gid, &world().nic->gid(), sizeof gid) == 0;
  }

  void ask_for_memory() {
    Request memory = request(RequestType::kMemory);
    const auto which = in_.take<std::uint8_t>() % 3;
    memory.memory_id = which == 0 ? world().memory : which == 1 ? world().secret_memory : in_.take<std::uint64_t>();
    ask(memory, {});
  }
  /// What is only heard: a wake, and a request to the service thread, which stands in the offered memory.
  void wake() {
    for (const RequestType type : {RequestType::kWake, RequestType::kServe, RequestType::kTake}) {
      Request heard = request(type);
      heard.your_qp = qp_->qp_num;
      ask(heard, {});
    }
  }
  void any_request() {
    const auto count = in_.take<std::uint8_t>() % 4U;
    auto any = in_.take<Request>();
    if (any.version % 2 == 0) any.version = kLayoutVersion;
    if (any.magic % 2 == 0) any.magic = kMagic;
    const auto event = must(make_eventfd());
    const std::array fds{event.get(), event.get(), event.get()};
    ask(any, std::span(fds).first(count));
  }
  /// Asks about any bytes: nothing is attested.
  void confirm() {
    const Tight attested(std::size_t{in_.take<std::uint8_t>()} * 8);
    Request question = request(RequestType::kConfirm);
    question.attested_bytes = static_cast<std::uint32_t>(attested.bytes().size());
    ask(question, {}, attested.bytes());
  }
  void raw_bytes() {
    const std::size_t size = std::size_t{1} + in_.take<std::uint8_t>();
    if (size >= sizeof(Request)) return;  // That is any_request's and confirm's.
    const Tight bytes(size);
    connect();
    send(bytes.bytes(), {});
    hang_up_expected();
  }

  // --- offers, and what stands in the offered memory

  [[nodiscard]] QpGeometry geometry(bool any) {
    if (any) return in_.take<QpGeometry>();
    const auto shift = in_.take<std::array<std::uint8_t, 3>>();
    QpGeometry made{
        .receive_entries = 1U << shift[0] % 8, .slots = 2U << shift[1] % 8, .data_bytes = 1U << (14 + shift[2] % 6)};
    made.start = in_.take<std::uint64_t>() / made.slots * made.slots;
    return made;
  }

  void offer() {
    const auto flags = in_.take<std::uint8_t>();
    const auto is = [&](unsigned bit) { return (flags >> bit & 1U) == 0; };
    Request offer = request(RequestType::kOffer);
    offer.my_qp = is(0) ? kPeerQp : kPeerQp + 2;
    offer.your_qp = is(1) ? qp_->qp_num : qp_->qp_num + 1;
    offer.pd = in_.take<std::uint8_t>();
    offer.access = in_.take<std::uint8_t>();
    offer.ready_bit = in_.take<std::uint32_t>();
    offer.min_rnr_timer = in_.take<std::uint32_t>();
    offer.bell_count = is(2) ? 1 : 0;
    offer.bells[0] = flags % 4U;
    offer.geometry = geometry(!is(3));
    const std::size_t bytes = offer.geometry.valid() ? offer.geometry.total_bytes() : 4096;
    Fd file = make_memfd(is(4) ? bytes : bytes + 4096, is(5) ? kSealed : 0);
    VERBENA_CHECK(static_cast<bool>(file));
    const Fd event = must(make_eventfd());
    const std::array fds{file.get(), is(6) ? event.get() : file.get()};
    ask(offer, std::span(fds).first(is(2) ? 2 : 1));
    if (file_ && !is(7)) return;  // Writes on into the file that it offered before.
    file_ = std::move(file);
    geometry_ = offer.geometry;
    next_ = geometry_.start;
  }

  void write(std::uint64_t offset, Bytes bytes) {
    // Beyond the file's end: it is sealed against growing.
    (void)!::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
  }
  /// The next slot of the peer's ring, mostly under the header that the NIC looks for.
  void write_slot() {
    const auto head = in_.take<std::array<std::uint8_t, 3>>();
    const auto length = in_.take<std::uint32_t>();
    const auto position = in_.take<std::uint64_t>();
    if (!file_ || !geometry_.valid()) return;
    std::array<std::byte, sizeof(Slot)> slot{};
    const std::uint64_t header = static_cast<std::uint32_t>(next_ + (head[0] == 0xff ? 2 : 1)) |
                                 static_cast<std::uint64_t>(head[0] == 0xff ? 0 : head[0]) << 48 |
                                 static_cast<std::uint64_t>(head[1]) << 32 | static_cast<std::uint64_t>(head[2]) << 40;
    std::memcpy(slot.data(), &header, sizeof header);
    const std::uint64_t details = details_of({.length = length});
    std::memcpy(slot.data() + offsetof(Slot, details), &details, sizeof details);
    std::memcpy(slot.data() + offsetof(Slot, payload), &position, sizeof position);
    write(geometry_.slots_offset() + (next_ & (geometry_.slots - 1)) * sizeof(Slot), slot);
    ++next_;
  }
  /// A word of the control page, of the lengths of receives, or of what is asked of the service thread.
  void write_word() {
    const auto at = in_.take<std::uint8_t>();
    const auto value = in_.take<std::uint64_t>();
    const bool is_service = at >= 128 && geometry_.valid();
    const std::size_t offset = is_service ? geometry_.service_offset() + (at % 16) * sizeof value : at * sizeof value;
    if (file_) write(offset, std::as_bytes(std::span(&value, 1)));
  }

  // --- the NIC's own side

  void post_receive() {
    const auto length = in_.take<std::uint16_t>() % (kReceiveStride / 2);
    if (received_ >= kReceives) return;
    ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(world().arena.data() + received_ * kReceiveStride),
                .length = static_cast<std::uint32_t>(length),
                .lkey = world().mr->lkey};
    ibv_recv_wr wr{.wr_id = received_, .next = nullptr, .sg_list = &sge, .num_sge = length == 0 ? 0 : 1};
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(qp_.get(), &wr, &bad) != 0) return;
    lengths_[received_++] = length;
  }
  void post_send() {
    const auto length = in_.take<std::uint16_t>() % (kArenaBytes - kSendOffset);
    ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(world().arena.data() + kSendOffset),
                .length = static_cast<std::uint32_t>(length),
                .lkey = world().mr->lkey};
    ibv_send_wr wr{};
    wr.wr_id = kReceives + sent_;
    wr.sg_list = &sge;
    wr.num_sge = length == 0 ? 0 : 1;
    wr.opcode = length % 2 == 0 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM;
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(qp_.get(), &wr, &bad) == 0) ++sent_;
  }
  /// Each work request completes at most once, in order, and no receive with more bytes than it has.
  void poll() {
    std::array<ibv_wc, 16> completions{};
    for (int i = 0; i < 4; ++i) {
      const int count = ibv_poll_cq(world().cq.get(), static_cast<int>(completions.size()), completions.data());
      VERBENA_CHECK(count >= 0);
      for (const ibv_wc& wc : std::span(completions).first(static_cast<std::size_t>(count))) check(wc);
    }
  }
  void check(const ibv_wc& wc) {
    if (wc.wr_id >= kReceives) {
      VERBENA_CHECK(wc.wr_id == kReceives + sends_done_++ && sends_done_ <= sent_);
      return;
    }
    VERBENA_CHECK(wc.wr_id == receives_done_ && receives_done_ < received_);
    // An immediate tells the length of a WRITE, which no receive bounds.
    if (wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV) VERBENA_CHECK(wc.byte_len <= lengths_[receives_done_]);
    ++receives_done_;
  }
  /// Nothing was written but inside the receives.
  void check_guards() const {
    const std::byte* const arena = world().arena.data();
    for (std::size_t i = 0; i < kReceives; ++i) {
      const Bytes behind(arena + i * kReceiveStride + lengths_[i], kReceiveStride - lengths_[i]);
      VERBENA_CHECK(std::ranges::all_of(behind, [](std::byte b) { return b == kGuard; }));
    }
  }

  Input in_;
  nic::Nic::Objects before_;
  nic::Qp qp_;
  std::optional<RawClient> client_;
  bool greeted_ = false;
  Fd file_;
  QpGeometry geometry_;
  std::uint64_t next_ = 0;
  std::array<std::size_t, kReceives> lengths_{};
  std::size_t received_ = 0;
  std::size_t receives_done_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t sends_done_ = 0;
};

}  // namespace
}  // namespace verbena::fuzz::soft_rendezvous

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::soft_rendezvous::Session({data, size}).run();
  return 0;
}
